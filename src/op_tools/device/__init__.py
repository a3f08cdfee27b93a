"""Work on a device: events, copies, kernels of our own."""
