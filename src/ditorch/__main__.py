"""`python -m ditorch`: the same as the command `ditorch`."""

from ditorch.cli import main

main()
