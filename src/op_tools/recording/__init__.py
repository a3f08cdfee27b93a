"""Keeping what a call saw: files of tensors and of statistics, written in the background."""
