"""Kernels of our own, for what takes a device many steps in torch."""
