"""The fields that transformers and sentence-transformers read from the files of a checkpoint, taken from their code."""

import inspect
import re
from collections.abc import Iterator, Set
from dataclasses import fields, is_dataclass
from typing import Any

# How the libraries read a field of a file.
_READ = re.compile(r'(?:\.(?:get|pop|setdefault)\(|\[)\s*"([a-zA-Z_]\w*)"|"([a-zA-Z_]\w*)" (?:not )?in \w')
# Arguments of methods that load a checkpoint, which no file may set.
_ARGUMENTS = frozenset(
    {
        *("self", "cls", "args", "kwargs", "model_name_or_path", "backend", "trust_remote_code", "token", "revision"),
        *("cache_dir", "cache_folder", "local_files_only", "subfolder", "force_download", "proxies", "commit_message"),
        *("device", "return_tensors", "name_or_path", "files_loaded", "vocab_file", "tokenizer_file", "merges_file"),
        *("tokenizer_object", "gguf_file", "vocab", "merges", "is_local", "verbose", "init_weight", "init_bias"),
        *("name", "repo_id", "fast_tokenizer_files"),
    }
)
_LIBRARIES = ("sentence_transformers", "transformers")


def fields_of(*classes: Any) -> Set[str]:
    """Return the names of the fields that classes read, also those that their parents read.

    Some names are not those of fields: the code reads other objects in the same way.
    """
    names = {name for kind in classes for each in inspect.getmro(kind) for name in _names(each)}
    names |= {name for kind in classes for name in _listed(kind)}
    return {name for name in names if name not in _ARGUMENTS and not name.startswith("_")}


def fields_in(*functions: Any) -> Set[str]:
    """Return the names of the fields that functions read, or write in a file."""
    return {one or other for each in functions for one, other in _READ.findall(inspect.getsource(each))}


def _listed(kind: Any) -> Iterator[str]:
    """Yield the names that a class lists."""
    for attribute in ("config_keys", "config_key_renames", "SPECIAL_TOKENS_ATTRIBUTES", "attribute_map"):
        yield from getattr(kind, attribute, ())
    valid = getattr(kind, "valid_kwargs", None)
    for each in (valid, *getattr(valid, "__orig_bases__", ())):
        yield from getattr(each, "__annotations__", ())


def _names(kind: Any) -> Iterator[str]:
    """Yield the names in the code of one class."""
    if is_dataclass(kind):
        yield from (field.name for field in fields(kind))
    if kind.__module__.partition(".")[0] in _LIBRARIES:
        yield from inspect.signature(kind.__init__).parameters
        yield from fields_in(kind)
