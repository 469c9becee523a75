"""Whether ONNX Runtime can use a GPU of this machine."""

from functools import cache

from headwaiter_server.runtime.errors import ProviderUnavailable
from headwaiter_server.runtime.graph import require_cuda


@cache
def cuda_unavailable_reason() -> str:
    """Return ONNX Runtime's reason for not using CUDA; empty if it can use CUDA."""
    try:
        require_cuda()
    except ProviderUnavailable as error:
        return str(error)
    return ""
