"""OpFallback and OpDtypeCast: an op on another device or in another dtype."""
