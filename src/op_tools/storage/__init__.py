"""Captures on disk."""
