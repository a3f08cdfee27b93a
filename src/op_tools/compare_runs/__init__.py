"""Compares two runs by their statistics: which call is the first that differs, and is it guilty or does it carry."""
