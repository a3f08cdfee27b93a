"""Time of ops: marks on the device, their sums, the trace."""
