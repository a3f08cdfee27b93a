"""Running an op elsewhere, on another device or in another dtype, so that its caller does not notice."""
