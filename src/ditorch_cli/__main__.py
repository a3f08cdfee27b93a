"""`python -m ditorch_cli`: the command `ditorch`; unlike `python -m ditorch`, it does not import torch first."""

from ditorch_cli import main

main()
