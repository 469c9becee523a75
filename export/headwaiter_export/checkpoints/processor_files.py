"""Read the settings by which a checkpoint prepares images or sounds."""

from pathlib import Path

from headwaiter_export.checkpoints.json_files import CheckpointJson


def read_processor(folder: Path, *parts: str) -> CheckpointJson:
    """Read the settings of a processor; without fields if the folder has none.

    `transformers` saves them in preprocessor_config.json, or with other processors in processor_config.json, whose part
    has priority. `parts` are the names that the part may have.

    Raises:
        CheckpointError: a file cannot be read, or the part is not an object.
    """
    together = CheckpointJson.read_if_present(folder / "processor_config.json")
    for name in parts:
        part = together.values.get(name)
        if isinstance(part, dict):
            return CheckpointJson(together.path, part)
        if part is not None:
            raise together.error(name, "it must be an object")
    return CheckpointJson.read_if_present(folder / "preprocessor_config.json")
