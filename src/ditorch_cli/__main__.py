"""`python -m ditorch_cli`: the command `ditorch`."""

from ditorch_cli import main

main()
