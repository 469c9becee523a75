"""Divide the file descriptors of the process, so that connections of one kind cannot take them all."""

import resource

# Python and ONNX Runtime are slow with far more; no server has this many callers.
_ENOUGH = 65_536
_MAX_HTTP_CONNECTIONS = 1024


def raise_limit() -> None:
    """Let the process have as many descriptors as the operating system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def max_http_connections() -> int:
    """Return the most connections of the HTTP port: a quarter of the descriptors, and at most 1,024."""
    return min(_MAX_HTTP_CONNECTIONS, _limit() // 4)


def max_grpc_connections() -> int:
    """Return the most connections of the gRPC port: half of the descriptors."""
    return _limit() // 2


def _limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft
