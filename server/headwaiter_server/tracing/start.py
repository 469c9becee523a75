"""Start tracing if the settings want it; without `--traces otlp`, OpenTelemetry is not even imported."""

from typing import TYPE_CHECKING

from headwaiter_server.settings.flags import Settings, SettingsError

if TYPE_CHECKING:
    from headwaiter_server.tracing.spans import Tracing


def start_tracing(settings: Settings, process: str) -> "Tracing | None":
    """Return the `Tracing` of a process; None if the settings want no traces.

    Raises:
        SettingsError: OpenTelemetry is not installed, or cannot use one of its environment variables.
    """
    if settings.traces == "off":
        return None
    try:
        from headwaiter_server.tracing.spans import Tracing

        return Tracing(process, "http" if settings.tls_cert is None else "https")
    except ModuleNotFoundError as missing:
        raise SettingsError(
            f"--traces otlp needs OpenTelemetry ({missing.name} is missing): pip install 'headwaiter[otel]'"
        ) from None
    except Exception as error:  # noqa: BLE001 - OpenTelemetry raises errors of many classes, some when it is imported
        raise SettingsError(
            f"--traces otlp: OpenTelemetry cannot start ({error}): check the environment variables OTEL_*"
        ) from None
