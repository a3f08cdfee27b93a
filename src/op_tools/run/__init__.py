"""What `ditorch run` does inside a program: starts the tools, and keeps a record of the process for the summary."""
