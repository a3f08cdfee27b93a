"""What the tools print and write."""
