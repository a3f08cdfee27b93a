"""`python -m ditorch`: the same as the command `ditorch`."""

from ditorch_cli import main

main()
