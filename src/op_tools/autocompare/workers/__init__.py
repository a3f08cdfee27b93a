"""Processes that compare calls while training goes on."""
