"""What is known about ops."""
