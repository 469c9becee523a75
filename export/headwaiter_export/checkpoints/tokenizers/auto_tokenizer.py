"""Read the tokenizer of a checkpoint, as `AutoTokenizer` of `transformers` 5 builds it.

`AutoTokenizer` chooses a class by its name. Most classes keep only the vocabulary of tokenizer.json. They build the
other parts from the settings beside it and from their own defaults, whatever tokenizer.json says.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer, processors

from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson, is_present, refuse_errors
from headwaiter_export.checkpoints.tokenizers.esm import esm_tokenizer

_SETTINGS, _TOKENS_MAP = "tokenizer_config.json", "special_tokens_map.json"
# The files that `AutoTokenizer` needs, and the fields of config.json by which it chooses a class.
_OPTIONAL_FILES = (_SETTINGS, _TOKENS_MAP, "added_tokens.json", "chat_template.jinja")
_FILES = ("tokenizer.json", "vocab.txt", *_OPTIONAL_FILES)
_CLASS_FIELDS = ("model_type", "tokenizer_class", "transformers_version")
_CHOOSE_CLASS = f"correct it, or choose another tokenizer_class in {_SETTINGS}"
# Settings of tokenizer_config.json that must be absent or empty, and what to do otherwise.
_REFUSED_SETTINGS = {
    "auto_map": "the export does not run code of a checkpoint: save the tokenizer as PreTrainedTokenizerFast, as "
    "docs/how-to/export-a-checkpoint.md shows",
    "fast_tokenizer_files": "keep the right file as tokenizer.json, and remove the field",
    **dict.fromkeys(("gguf_file", "init_inputs", "merges", "tokenizer_object", "vocab"), "remove the field"),
    "split_special_tokens": "it must be false",
}


@dataclass(frozen=True, eq=False)
class CheckpointTokenizer:
    """The tokenizer of a checkpoint.

    Attributes:
        path: the file of its vocabulary, tokenizer.json or vocab.txt.
        reference: the tokenizer that `AutoTokenizer` builds.
        tokenizer: the same tokenizer for a bundle, where no Python code of `transformers` runs.
        alone: the tokenizer of tokenizer.json without the settings beside the file; None for vocab.txt.
    """

    path: Path
    reference: Any
    tokenizer: Tokenizer
    alone: Tokenizer | None

    @property
    def folder(self) -> Path:
        """The folder of the checkpoint."""
        return self.path.parent

    @property
    def gives_token_types(self) -> bool:
        """Whether a model gets the token types; otherwise `transformers` lets all tokens have the type 0."""
        return "token_type_ids" in self.reference.model_input_names

    @property
    def is_python(self) -> bool:
        """Whether the class in `transformers`, such as EsmTokenizer, is Python code."""
        return _backend(self.reference) is None


def read_checkpoint_tokenizer(folder: Path, config_json: CheckpointJson) -> CheckpointTokenizer | None:
    """Read the tokenizer of a checkpoint; return None if it has none that runs without Python.

    Raises:
        CheckpointError: a file is damaged, or has a setting that `transformers` or the export cannot apply.
    """
    file, lines = folder / "tokenizer.json", folder / "vocab.txt"
    if is_present(file) and not file.is_file():
        raise CheckpointError(f"{file} is missing, or no regular file: save it again, or remove the entry")
    if not file.is_file() and not lines.is_file():
        return None
    _check_settings(folder)
    alone = read_tokenizer_file(file) if file.is_file() else None
    reference = _read_reference(folder, config_json)
    if reference.truncation_side != "right":
        raise CheckpointError(
            f"the tokenizer of {folder} has the truncation side {reference.truncation_side!r}: set truncation_side in "
            f"{_SETTINGS} to 'right', and let requests choose the side"
        )
    backend = _backend(reference)
    if alone is not None and backend is not None:
        return CheckpointTokenizer(file, reference, _of_backend(backend, reference, alone, file), alone)
    # Another class has built a tokenizer without a vocabulary.
    if not lines.is_file() or lines.name not in reference.vocab_files_names.values():
        return None
    if backend is not None:
        return CheckpointTokenizer(lines, reference, _of_backend(backend, reference, None, lines), None)
    if type(reference).__name__ == "EsmTokenizer":
        return CheckpointTokenizer(lines, reference, esm_tokenizer(reference), None)
    return None


def _of_backend(backend: Tokenizer, reference: Any, alone: Tokenizer | None, path: Path) -> Tokenizer:
    """Return a copy of a backend for a bundle."""
    with refuse_errors(lambda reason: unusable(path.parent, reason)):
        tokenizer = Tokenizer.from_str(backend.to_str())
    if alone is not None and type(alone.model) is not type(tokenizer.model):
        raise CheckpointError(
            f"{path} has a {type(alone.model).__name__} model, but {type(reference).__name__} builds a "
            f"{type(tokenizer.model).__name__} model: {_CHOOSE_CLASS}"
        )
    # A server decodes no ids, and transformers adds a step that adds no tokens: the bundle keeps what the file has.
    tokenizer.decoder = alone.decoder if alone is not None else None
    if alone is not None and alone.post_processor is None and _adds_nothing(tokenizer):
        tokenizer.post_processor = None
    return tokenizer


def read_tokenizer_file(path: Path) -> Tokenizer:
    """Read a tokenizer.json.

    Raises:
        CheckpointError: the file cannot be read, or has no tokens.
    """
    with refuse_errors(lambda reason: f"{path} cannot be read ({reason}): save the tokenizer again"):
        tokenizer = Tokenizer.from_file(str(path))
    if not tokenizer.get_vocab():
        raise CheckpointError(f"{path} has no tokens: save the tokenizer again")
    return tokenizer


def library_name() -> str:
    """Return the name of `AutoTokenizer` and its version, for messages."""
    from transformers import __version__

    return f"AutoTokenizer of transformers {__version__}"


@contextmanager
def without_messages() -> Iterator[None]:
    """Suppress warnings and progress bars of transformers: what matters is an error here."""
    from transformers import logging

    verbosity, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bar:
            logging.enable_progress_bar()


def unusable(path: Path, reason: str) -> str:
    """Return a message that `transformers` cannot use a tokenizer, or one of its files."""
    return (
        f"{path}: {library_name()} cannot use the tokenizer ({reason:.200}): save the tokenizer again, or remove "
        "its files to serve token ids alone"
    )


def _check_settings(folder: Path) -> None:
    settings, older = (CheckpointJson.read_if_present(folder / name) for name in (_SETTINGS, _TOKENS_MAP))
    for name, expected in _REFUSED_SETTINGS.items():
        if settings.values.get(name):
            raise settings.error(name, expected)
    # transformers would take other settings from this file, too, and files of any name.
    for name in () if "added_tokens_decoder" in settings.values else older.values:
        if name in _REFUSED_SETTINGS or not name.endswith(("_token", "_special_tokens")):
            raise older.error(name, f"the export reads only tokens there: remove it, or set it in {_SETTINGS}")


def _read_reference(folder: Path, config_json: CheckpointJson) -> Any:
    """Return the tokenizer that `AutoTokenizer` makes of a copy of the files, among which there is no code."""
    with TemporaryDirectory() as name:
        copy = Path(name)
        for file in _FILES:
            if (folder / file).is_file():
                shutil.copyfile(folder / file, copy / file)
        fields = {name: config_json.values[name] for name in _CLASS_FIELDS if name in config_json.values}
        (copy / "config.json").write_text(json.dumps(fields), encoding="utf-8")
        try:
            return _from_pretrained(copy)
        except CheckpointError as error:
            if found := _found_setting(copy):
                file, field = found
                source = config_json if file == "config.json" else CheckpointJson.read(folder / file)
                raise source.error(field, f"{library_name()} cannot use it ({error!s:.200}): {_CHOOSE_CLASS}") from None
            raise CheckpointError(unusable(folder / _found_file(copy), str(error))) from None


def _found_setting(copy: Path) -> tuple[str, str] | None:
    """Return the file and the name of the setting without which `AutoTokenizer` can read a copy; None if it cannot."""
    for file in (_SETTINGS, _TOKENS_MAP, "config.json"):
        values = CheckpointJson.read_if_present(copy / file).values
        # First the fields without which the class is the same.
        for field in sorted(values, key=lambda name: name in _CLASS_FIELDS):
            (copy / file).write_text(json.dumps({name: values[name] for name in values if name != field}))
            with suppress(CheckpointError):
                _from_pretrained(copy)
                return file, field
        if values:
            (copy / file).write_text(json.dumps(values))
    return None


def _found_file(copy: Path) -> str:
    """Return the name of the file without which `AutoTokenizer` can read a copy; empty if it cannot."""
    for name in _OPTIONAL_FILES:
        if (copy / name).is_file():
            content = (copy / name).read_bytes()
            (copy / name).unlink()
            with suppress(CheckpointError):
                _from_pretrained(copy)
                return name
            (copy / name).write_bytes(content)
    return ""


def _from_pretrained(folder: Path) -> Any:
    """Return the tokenizer of a folder; the message of an error is the reason alone."""
    # The import takes seconds.
    from transformers import AutoTokenizer

    with refuse_errors(str), without_messages():
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def _backend(reference: Any) -> Tokenizer | None:
    backend = getattr(reference, "backend_tokenizer", None)
    return backend if isinstance(backend, Tokenizer) else None


def _adds_nothing(tokenizer: Tokenizer) -> bool:
    is_template = isinstance(tokenizer.post_processor, processors.TemplateProcessing)
    return is_template and not tokenizer.num_special_tokens_to_add(is_pair=True)
