"""The first op that makes NaN or Inf out of finite numbers."""
