"""OpFallback and OpDtypeCast: an op on another device or in another dtype.

fallback.py   OpFallback; cpu_call.py: one call on the CPU
cast.py       OpDtypeCast; cast_call.py: one call in other dtypes
stand_ins.py  what an op is given in place of its tensors, for both; device_copies.py: copies with gradients
"""
