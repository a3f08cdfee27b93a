"""Time of ops: events on the device, their sums, the trace."""
