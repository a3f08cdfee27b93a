"""Real programs written for CUDA, each run unchanged on a device and on the CPU: see docs/programs.md."""
