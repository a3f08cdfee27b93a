"""What the tools print and write, as files. test_golden.py says how they are written anew."""
