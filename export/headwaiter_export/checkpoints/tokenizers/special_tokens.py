"""Read the special and added tokens that the files beside a tokenizer.json list, by the rules of `transformers` 5."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson

# Tokens get ids in this order if the vocabulary lacks them.
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# The post-processor decides on these.
_IGNORED = ("add_bos_token", "add_eos_token")
# The settings beside tokens that transformers also takes from special_tokens_map.json, and that change ids or limits.
_SETTINGS = {
    *_IGNORED,
    *("model_max_length", "max_len", "truncation_side", "model_input_names", "split_special_tokens"),
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space", "trim_offsets", "legacy"),
    *("extra_ids", "keep_accents", "remove_space", "unk_id", "split_by_punct", "model_specific_special_tokens"),
}
_FLAGS = ("lstrip", "normalized", "rstrip", "single_word", "special")


@dataclass(frozen=True)
class TokenSettings:
    """The special and added tokens of a tokenizer.

    Attributes:
        declared: tokens with their own flags, in the order of their ids.
        named: special tokens by name; None for a token that the checkpoint turns off.
        extra: special tokens without a name.
    """

    declared: Sequence[AddedToken]
    named: Mapping[str, AddedToken | None]
    extra: Sequence[AddedToken]

    def name(self, name: str) -> str:
        """Return the text of a named special token that the tokenizer cannot do without.

        Raises:
            CheckpointError: the checkpoint turns the token off.
        """
        token = self.named.get(name)
        if token is None:
            raise CheckpointError(f"the tokenizer's settings turn {name} off: name the token in tokenizer_config.json")
        return str(token.content)

    def missing_from(self, known: Iterable[str]) -> list[AddedToken]:
        """Return the tokens to add to a tokenizer that has the added tokens `known`."""
        named = [token for token in self.named.values() if token is not None]
        listed = {*known, *(token.content for token in self.declared)}
        # Of tokens with the same content, the flags of the last one count.
        tokens = [*self.declared, *(token for token in [*named, *self.extra] if token.content not in listed)]
        special = {token.content for token in named}
        for token in tokens:
            token.special = token.special or token.content in special
        return tokens

    def without_flags(self) -> list[AddedToken]:
        """Return the special tokens without flags such as lstrip."""
        named = [token for token in self.named.values() if token is not None]
        return [AddedToken(token.content, special=True) for token in (*named, *self.extra)]


def read_token_settings(
    folder: Path,
    settings: CheckpointJson,
    file_tokens: Sequence[Mapping[str, Any]],
    defaults: Mapping[str, str],
    extra_defaults: Sequence[str],
    left_stripped: Collection[str] = (),
) -> TokenSettings:
    """Read the tokens of a checkpoint.

    The field added_tokens_decoder replaces the older files and the added tokens of tokenizer.json.

    Args:
        folder: the checkpoint.
        settings: content of tokenizer_config.json.
        file_tokens: added tokens of tokenizer.json.
        defaults: named special tokens of the tokenizer's class.
        extra_defaults: special tokens of the class without a name.
        left_stripped: names of special tokens that take the spaces before them, unless a file gives their flags.

    Raises:
        CheckpointError: a token is malformed, or the older file has settings beside tokens.
    """
    modern = "added_tokens_decoder" in settings.values
    older = CheckpointJson(folder, {}) if modern else CheckpointJson.read_if_present(folder / "special_tokens_map.json")
    for name in sorted(_SETTINGS & older.values.keys()):
        # Texts lose tokens on the right by default. Null may differ from an absent field.
        known = {"truncation_side": "right", **settings.values}
        if name not in known or older.values[name] != known[name]:
            raise older.error(name, f"the export reads it only in {settings.path.name}: remove it, or set it there")
    listed = _read_named(settings, left_stripped) | _read_named(older, left_stripped)
    listed_extra = _read_extra(settings)
    named = {
        name: AddedToken(text, lstrip=name in left_stripped, special=True) for name, text in defaults.items()
    } | listed
    extra = _read_older_extra(older, listed_extra)
    if extra is None:
        extra = {text: AddedToken(text, special=True) for text in extra_defaults}
    if modern:
        declared = _read_declared(settings)
    else:
        special = {token.content for name, token in listed.items() if name in _NAMES and token is not None}
        special |= ((listed_extra if "extra_special_tokens" not in older.values else extra) or {}).keys()
        declared = _read_added(CheckpointJson.read_if_present(folder / "added_tokens.json"), special)
        for token in file_tokens:
            declared[token["id"]] = AddedToken(**{name: token[name] for name in ("content", *_FLAGS)})
    order = sorted(named, key=lambda name: _NAMES.index(name) if name in _NAMES else len(_NAMES))
    return TokenSettings(
        [declared[key] for key in sorted(declared)], {name: named[name] for name in order}, [*extra.values()]
    )


def _read_named(source: CheckpointJson, left_stripped: Collection[str]) -> dict[str, AddedToken | None]:
    """Return the fields that end with _token, except flags such as add_bos_token, and named extra tokens."""
    extra = source.values.get("extra_special_tokens")
    fields = {name: value for name, value in source.values.items() if name.endswith("_token") and name not in _IGNORED}
    fields |= extra if isinstance(extra, dict) else {}
    return {
        name: None if value is None else _token(source, name, value, lstrip=name in left_stripped)
        for name, value in fields.items()
        if not isinstance(value, bool)
    }


def _read_extra(source: CheckpointJson) -> dict[str, AddedToken] | None:
    """Return the special tokens without a name, by content; None if the file has no field for them."""
    present = [
        field
        for field in ("extra_special_tokens", "additional_special_tokens")
        if field in source.values and not isinstance(source.values[field], dict)
    ]
    if not present:
        return None
    field = next((field for field in present if source.values[field]), present[0])
    values = source.values[field] or []
    if not isinstance(values, list):
        raise source.error(field, "it must be a list of tokens")
    return {token.content: token for token in (_token(source, field, value) for value in values)}


def _read_older_extra(older: CheckpointJson, listed: dict[str, AddedToken] | None) -> dict[str, AddedToken] | None:
    """Return the special tokens without a name of special_tokens_map.json and of tokenizer_config.json (`listed`).

    The field extra_special_tokens of the older file adds tokens; its additional_special_tokens counts alone.
    """
    name = "extra_special_tokens"
    if name not in older.values or isinstance(older.values[name], dict):
        return _read_extra(older) if listed is None else listed
    if older.values[name] is None:
        return {}
    return {**(listed or {}), **(_read_extra(CheckpointJson(older.path, {name: older.values[name]})) or {})}


def _read_declared(settings: CheckpointJson) -> dict[int, AddedToken]:
    """Return the tokens of the field added_tokens_decoder by their ids."""
    field = "added_tokens_decoder"
    values = settings.values[field]
    if not isinstance(values, dict) or not all(key.isdecimal() for key in values):
        raise settings.error(field, "it must be an object of tokens with ids as keys")
    return {int(key): _token(settings, field, value) for key, value in values.items()}


def _read_added(added_json: CheckpointJson, special: Collection[str]) -> dict[int, AddedToken]:
    """Return the tokens of added_tokens.json by their ids; only tokens that are not special are normalised."""
    return {
        added_json.size(text, least=0): AddedToken(text, normalized=text not in special, special=text in special)
        for text in added_json.values
    }


def _token(source: CheckpointJson, field: str, value: object, *, lstrip: bool = False) -> AddedToken:
    """Return a token that a file gives as a string, then with this flag, or as an object with its content and flags."""
    if isinstance(value, str):
        return AddedToken(value, lstrip=lstrip, special=True)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise CheckpointError(
            f"{source.path} has {field} {value!r:.99}: a token must be a string, or an object with content"
        )
    flags = {name: value[name] for name in _FLAGS if name in value}
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise source.error(field, f"the flags {', '.join(_FLAGS)} of a token must be true or false")
    return AddedToken(value["content"], **flags)
