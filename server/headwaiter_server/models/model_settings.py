"""Read the settings that apply to a single model."""

import dataclasses
import json
from pathlib import Path

from headwaiter_server.runtime.files import read_small_file
from headwaiter_server.settings.flags import Settings, SettingsError, read_value

_OWN_SETTINGS = ("load", "precision", "instances", "token_budget", "max_sequence_tokens", "warm_up")
_MAX_BYTES = 1 << 16


def read_model_settings(settings: Settings, file: Path | None) -> Settings:
    """Return the settings of one model: those in its JSON file, and the server's values for all others.

    Raises:
        SettingsError: the file is not a JSON object, or one of its settings is wrong or cannot be set for one model.
    """
    if file is None:
        return settings
    try:
        given = json.loads(read_small_file(file, _MAX_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return settings
    except OSError as error:
        raise SettingsError(f"{file} cannot be read ({error.strerror}): write a JSON object") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{file} is not JSON ({error}): write a JSON object") from None
    if not isinstance(given, dict):
        raise SettingsError(f"{file} is not a JSON object: write one, such as {{}}")
    if unknown := given.keys() - _OWN_SETTINGS:
        raise SettingsError(
            f"{file} sets {', '.join(sorted(unknown))}: a model's settings are {', '.join(_OWN_SETTINGS)}"
        )
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    # A model with fewer instances than the server does not get more threads for each instance.
    threads = settings.threads_per_instance or 0
    try:
        values = {name: read_value(fields[name], str(value)) for name, value in given.items()}
        own = dataclasses.replace(settings, threads=threads, **values)
    except SettingsError as error:
        raise SettingsError(f"{file}: {error}") from None
    if own.instances > settings.instances:
        raise SettingsError(
            f"{file}: {own.instances} instances exceed the server's {settings.instances}: start the server with "
            f"--instances {own.instances}"
        )
    return own
