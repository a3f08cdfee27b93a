"""Work on a device: events, copies, kernels of our own.

queues.py         events and streams; batches of looks that are deferred until the device gets there
progress.py       how far the device has got; failure.py: it has failed
host_copies.py    copies on the host; host_memory.py: the memory for them
generators.py     the state of random numbers; tf32.py: what the device may compute with ten bits
compiled.py       CUDA source, compiled by NVRTC and launched; the kernels, each with its Python:
largest.py        the largest absolute value of each tensor (largest.cu)
moments.py        a few sums of each tensor (moments.cu)
row_sums.py       weighted sums of rows (row_sums.cu)
digest.py         digests, which tell what a tensor holds: their definition; sketch.py: the numbers in one
digests.py        digests of tensors where they lie, by digests_cuda.py (digest.cu) or digests_host.py
tensor_groups.py  tensors of one call that go into one launch of these
staging.py        for devices without such a kernel: tensors are copied into a buffer, torch's kernels digest it
"""
