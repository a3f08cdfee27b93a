"""Seeing calls and handing them to the tools."""
