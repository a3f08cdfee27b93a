"""The same call elsewhere, in higher precision."""
