"""What the log says at the start: where HTTP answers requests, and what strangers can do."""

from ipaddress import ip_address

from headwaiter_playground.call_rules import is_ip_address
from headwaiter_server.settings.flags import Settings

_ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104  # Compared, not bound.


def addresses(settings: Settings, port: int) -> list[str]:
    """Return a line for each of the API and the playground that is on."""
    host, _ = settings.http_host_and_port
    host = "localhost" if host in _ALL_ADDRESSES else f"[{host}]" if ":" in host else host
    root = f"{'http' if settings.tls_cert is None else 'https'}://{host}:{port}"
    lines = [f"HTTP API on port {port}: {root}/v1"] if settings.http_api == "on" else []
    return [*lines, *([f"playground at {root}/playground/"] if settings.playground == "on" else [])]


def warnings(settings: Settings) -> list[str]:
    """Return a line for each thing that callers on other hosts can do without a token or a certificate."""
    lines = []
    if settings.model_control == "on" and settings.token_file is not None and settings.admin_token_file is None:
        lines.append(
            "everybody who has the token of --token-file can load and unload models, because of --model-control "
            "without a token of its own: set --admin-token-file"
        )
    if settings.token_file is not None or settings.tls_client_ca is not None:
        return lines
    host, _ = settings.http_host_and_port
    if settings.answers_over_http and not _is_loopback(host):
        flags = [name for name in ("http_api", "playground") if getattr(settings, name) == "on"]
        names = " and ".join(f"--{name.replace('_', '-')}" for name in flags)
        lines.append(
            f"everybody who reaches HTTP on {host} can use the models, because of {names} without a token: set "
            "--token-file, or --http-address 127.0.0.1:PORT for callers, and readers of the metrics, on this host only"
        )
    host = settings.address.rpartition(":")[0].strip("[]")
    if settings.model_control == "on" and settings.admin_token_file is None and not _is_loopback(host):
        lines.append(
            f"everybody who reaches gRPC on {host} can load and unload models, because of --model-control without a "
            "token: set --admin-token-file, or --address 127.0.0.1:PORT for callers on this host only"
        )
    return lines


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (is_ip_address(host) and ip_address(host).is_loopback)
