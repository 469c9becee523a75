"""The tokenizer of ESM, whose class in `transformers` is Python code, without that code."""

import re
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

from headwaiter_export.checkpoints.json_files import CheckpointError

# What Python's `str.split` takes as spaces.
_SPACES = r"[\u0009-\u000d\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"


def esm_tokenizer(reference: Any) -> Tokenizer:
    """Return the tokenizer that an EsmTokenizer is: it finds the tokens of its vocabulary anywhere in a text.

    Raises:
        CheckpointError: a token has several letters or contains a special token, and may therefore overlap with an
            added token; or the checkpoint turns off a token that the tokenizer cannot do without.
    """
    tokens = [token for token in reference.all_tokens if token]
    for token in tokens:
        if len(token) > 1 and not (token.startswith("<") and token.endswith(">")):
            raise CheckpointError(f"vocab.txt has the token {token!r:.99}: the export knows only letters and <names>")
        if inside := [name for name in reference.all_special_tokens if name in token and name != token]:
            raise CheckpointError(f"vocab.txt has the token {token!r:.99}, which contains {inside[0]!r:.99}: remove it")
    tokenizer = Tokenizer(
        models.WordLevel({token: number for number, token in enumerate(reference.all_tokens)}, _token(reference, "unk"))
    )
    # At one place, the longest token counts.
    pieces = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pieces), "isolated"), pre_tokenizers.Split(Regex(f"{_SPACES}+"), "removed")]
    )
    tokenizer.add_tokens([token for _, token in sorted(reference.added_tokens_decoder.items())])
    begin, end = _token(reference, "cls"), _token(reference, "eos")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[begin, "$A", end],
        pair=[begin, "$A", end, "$B", end],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in dict.fromkeys((begin, end))],
    )
    return tokenizer


def _token(reference: Any, name: str) -> str:
    token = getattr(reference, f"{name}_token")
    if token is None:
        raise CheckpointError(f"the settings turn {name}_token off: name the token in tokenizer_config.json")
    return str(token)
