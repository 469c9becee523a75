"""The GPU check: whether graphs run on CUDA, give the right results, are fast and do not leak memory."""
