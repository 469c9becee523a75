"""A model may have settings of its own; the error for a wrong one names the file."""

import dataclasses
from pathlib import Path

import pytest

from headwaiter_server.models.model_settings import read_model_settings
from headwaiter_server.settings.flags import Settings, SettingsError


def test_a_model_may_have_settings_of_its_own(tmp_path: Path) -> None:
    settings = Settings(models=Path("m"), instances=2, token_budget=64)
    file = tmp_path / "settings.json"
    assert read_model_settings(settings, file) == settings
    file.write_text(
        '{"precision": "fp16", "instances": 1, "max_sequence_tokens": 128, "warm_up": "off", "load": "on-demand"}'
    )
    own = read_model_settings(settings, file)
    expected = dataclasses.replace(
        settings,
        precision="fp16",
        instances=1,
        max_sequence_tokens=128,
        warm_up="off",
        load="on-demand",
        threads=own.threads,
    )
    assert own == expected
    # The sessions of all models share the processors.
    assert own.threads_per_instance == settings.threads_per_instance


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("{", ["JSON"]),
        ("[]", ["JSON object"]),
        ('{"address": "0.0.0.0:1"}', ["address", "token_budget"]),
        ('{"precision": "int4"}', ["--precision", "'int4'"]),
        ('{"instances": 3}', ["3", "2", "--instances"]),
    ],
)
def test_the_error_for_wrong_settings_of_a_model_names_the_file(text: str, facts: list[str], tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_model_settings(Settings(bundle=Path("b"), instances=2), file)
    for fact in [str(file), *facts]:
        assert fact in str(caught.value)
