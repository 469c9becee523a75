"""Read how a MultiVectorEncoder of `sentence-transformers`, such as ColBERT, treats queries and documents.

Its vectors are hidden rows. Masks may expand queries, and the vectors of some tokens of documents, such as punctuation,
are left out. The prompts "query" and "document" of a bundle stand for the two tasks.
"""

from dataclasses import replace
from typing import Any

from tokenizers import Tokenizer

from headwaiter_export.checkpoints.families.family import Family
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.checkpoints.texts import DOCUMENT, QUERY, Prompt, TextConfig, transformer_settings
from headwaiter_export.checkpoints.tokenizers.auto_tokenizer import CheckpointTokenizer
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError

# The settings of the Transformer module that `with_tasks` reads.
TASK_FIELDS = ("query_length", "document_length", "query_expansion")
_EXPANSION_FIELDS = {"strategy", "attend", "token", "length"}


def with_tasks(
    text: TextConfig,
    config: EncoderConfig,
    saved: CheckpointTokenizer,
    mask: CheckpointJson,
    family: Family,
    route: str | None = None,
) -> tuple[TextConfig, EncoderConfig]:
    """Return the configurations of texts and of the encoder with what queries and documents need.

    Args:
        text: the configuration of texts with its prompts; a prompt that is missing is added, and has no text.
        config: the configuration of the encoder.
        saved: the tokenizer of the checkpoint.
        mask: settings of MultiVectorMask.
        family: the family of the checkpoint.
        route: the route of a Router, which is then the task of texts without a prompt.

    Raises:
        CheckpointError: a setting cannot be reproduced.
    """
    settings = transformer_settings(saved.folder)
    tokenizer = Tokenizer.from_str(text.tokenizer)
    prompts = {name: Prompt(name, "", 0) for name in (QUERY, DOCUMENT)} | {each.name: each for each in text.prompts}
    limits = dict.fromkeys(prompts, text.max_tokens)
    for name in (QUERY, DOCUMENT):
        if (limit := settings.limit(f"{name}_length")) is not None:
            limits[name] = min(int(limit), config.max_tokens)
    skipped, skips_queries = _skiplist(mask, tokenizer)
    for name, prompt in prompts.items():
        # A text without the task "query" is a document.
        prompts[name] = replace(prompt, skiplist_ids=skipped if name != QUERY or skips_queries else ())
    if settings.values.get("query_expansion") is not None:
        expansion = _read_expansion(settings)
        expansion_id = _expansion_id(expansion, settings, saved.reference)
        length = expansion["length"]
        if expansion["strategy"] == "fixed":
            limits[QUERY] = length
        elif settings.values.get("query_length") is not None:
            limits[QUERY] = max(limits[QUERY], length)
        if not length <= limits[QUERY] <= config.max_tokens:
            most = min(limits[QUERY], config.max_tokens)
            raise settings.error("query_expansion", f"its length must be at most {most}, the most tokens of a query")
        prompts[QUERY] = replace(prompts[QUERY], expanded_tokens=length, expansion_id=expansion_id)
        if not expansion.get("attend", False):
            _check_unattended(expansion_id, length, settings, tokenizer, family, config)
            config = _with_expansion(config, expansion_id, settings)
    for name, prompt in prompts.items():
        if (least := len(tokenizer.encode(prompt.text).ids) + 1) > limits[name]:
            raise CheckpointError(
                f"{settings.path} lets a {name} have {limits[name]} tokens: it must be at least {least}, for the "
                "prompt, special tokens and one token of the text"
            )
    most = max(limits.values())
    limited = (replace(each, max_tokens=limits[name] if limits[name] < most else 0) for name, each in prompts.items())
    default = text.default_prompt or (QUERY if route == QUERY else DOCUMENT)
    return replace(text, max_tokens=most, prompts=tuple(limited), default_prompt=default), config


def _skiplist(mask: CheckpointJson, tokenizer: Tokenizer) -> tuple[tuple[int, ...], bool]:
    """Return the ids of the tokens whose vectors are left out, and whether queries lack these vectors too.

    Words that are no tokens are ignored.
    """
    mask.require({"keep_only_token_ids": None}, known=("skiplist_words", "skiplist_tasks"))
    found = (tokenizer.token_to_id(word) for word in mask.strings("skiplist_words"))
    ids = sorted({token_id for token_id in found if token_id is not None})
    tasks = mask.strings("skiplist_tasks")
    if mask.values.get("skiplist_tasks") is None:
        tasks = [DOCUMENT]
    if ids and not {DOCUMENT} <= {*tasks} <= {DOCUMENT, QUERY}:
        raise mask.error("skiplist_tasks", f'it must be ["{DOCUMENT}"], or ["{DOCUMENT}", "{QUERY}"]')
    return tuple(ids), QUERY in tasks


def _read_expansion(settings: CheckpointJson) -> dict[str, Any]:
    """Return the object `query_expansion`, whose fields have the right types and a known strategy."""
    expansion = settings.values["query_expansion"]
    if not isinstance(expansion, dict) or not {"strategy", "length"} <= expansion.keys() <= _EXPANSION_FIELDS:
        raise settings.error("query_expansion", f"it must be an object of {', '.join(sorted(_EXPANSION_FIELDS))}")
    if expansion["strategy"] not in ("fixed", "min"):
        raise settings.error("query_expansion", 'its strategy must be "fixed" or "min"')
    if type(expansion["length"]) is not int or expansion["length"] < 1:
        raise settings.error("query_expansion", "its length must be an integer of at least 1")
    if not isinstance(expansion.get("attend", False), bool):
        raise settings.error("query_expansion", "its attend must be true or false")
    return expansion


def _expansion_id(expansion: dict[str, Any], settings: CheckpointJson, reference: Any) -> int:
    """Return the id of the token that expands queries: by default, the mask or the end token of the tokenizer."""
    if reference.padding_side != "right":
        raise settings.error("query_expansion", "the tokenizer pads on the left; the export knows only the right side")
    token = expansion.get("token") or reference.mask_token or reference.eos_token
    expansion_id = reference.get_vocab().get(token) if isinstance(token, str) else None
    if expansion_id is None:
        raise settings.error("query_expansion", f"its token {token!r} is not in the vocabulary of the tokenizer")
    return int(expansion_id)


def _check_unattended(
    expansion_id: int,
    length: int,
    settings: CheckpointJson,
    tokenizer: Tokenizer,
    family: Family,
    config: EncoderConfig,
) -> None:
    """Check that transformers computes what graphs compute for masks that no token attends to.

    The graphs find these masks as the run of `expansion_id` at the end of a sequence, see `EncoderConfig`.
    """
    text = tokenizer.encode("a")
    if not text.special_tokens_mask[-1] or text.ids[-1] == expansion_id:
        raise settings.error(
            "query_expansion", "with attend false, the tokenizer must end texts with a special token of its own"
        )
    if family.changes_unattended_rows:
        raise settings.error(
            "query_expansion", "with attend false, the graphs cannot compute the masks of this family: train with true"
        )
    if config.local_layers and length > config.window:
        # Otherwise a mask may have no other token within the window.
        raise settings.error(
            "query_expansion", f"with attend false, its length must be at most {config.window}, the attention window"
        )


def _with_expansion(config: EncoderConfig, expansion_id: int, settings: CheckpointJson) -> EncoderConfig:
    try:
        return replace(config, expansion_id=expansion_id)
    except ConfigError as error:
        raise settings.error("query_expansion", f"attend is false: {error}") from None
