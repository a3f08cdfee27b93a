"""OpCapture: saves what a call saw."""
