"""Traces that cannot be started end the start with one sentence, which says what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwaiter_server.settings.flags import Settings, SettingsError
from headwaiter_server.tracing.start import start_tracing

TRACES = Settings(bundle=Path("b"), traces="otlp")


def test_without_traces_nothing_is_started() -> None:
    assert start_tracing(Settings(bundle=Path("b")), "engine") is None


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "headwaiter_server.tracing.spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(SettingsError, match=r"pip install 'headwaiter\[otel\]'"):
        start_tracing(TRACES, "engine")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "ten"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
    ],
)
def test_a_variable_with_a_wrong_value_is_a_wrong_setting(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match="OTEL_"):
        start_tracing(TRACES, "engine")


@pytest.mark.usefixtures("starts_processes")
def test_a_variable_that_the_sdk_reads_when_it_is_imported_is_a_wrong_setting() -> None:
    program = (
        "from pathlib import Path; from headwaiter_server.settings.flags import Settings, SettingsError\n"
        "from headwaiter_server.tracing.start import start_tracing\n"
        "try: start_tracing(Settings(bundle=Path('b'), traces='otlp'), 'engine')\n"
        "except SettingsError as error: print(error)"
    )
    environment = {**os.environ, "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "abc"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT" in ran.stdout
