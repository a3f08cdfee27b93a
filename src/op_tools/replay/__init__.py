"""Runs captured calls again."""
