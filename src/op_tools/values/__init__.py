"""What the arguments and results of calls are made of."""
