"""Whether this machine has a card that ONNX Runtime can use."""

from functools import cache

from headwaiter_server.runtime.errors import ProviderUnavailable
from headwaiter_server.runtime.graph import require_cuda


@cache
def why_no_cuda() -> str:
    """Return the runtime's own reason why it cannot use CUDA; empty where it can."""
    try:
        require_cuda()
    except ProviderUnavailable as error:
        return str(error)
    return ""
