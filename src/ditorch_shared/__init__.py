"""What ditorch and op_tools share, which know nothing of each other: the building of C++, and environment variables."""
