"""The sentences that calibrate int8, and those whose nearest neighbours or scores are compared.

The sentences are part of this package, so a bundle does not depend on what else is installed. They were written for
this purpose, in 29 languages and 14 scripts, with code, log lines and numbers.
"""

from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise

import numpy as np
from tokenizers import Encoding, Tokenizer

from headwaiter_export.checkpoints.texts import Prompt, TextConfig
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.reference import Sequence
from headwaiter_proto.rules.pairs import text_of_pair

# The file and its version. parity.json names it, so a changed file needs another number.
SENTENCES = "sentences-1"
# Every second sentence calibrates: the file is sorted by language, so each half has all languages.
_CALIBRATION_STEP = 2


@dataclass(frozen=True, eq=False)
class TokenizedSentences:
    """Token ids of distinct sentences that fit a model, or of pairs of sentences if the model takes pairs.

    Attributes:
        calibration: the sentences that calibrate int8.
        measured: the sentences whose nearest neighbours or scores are compared; calibration has not seen them.
    """

    calibration: list[Sequence]
    measured: list[Sequence]


def sentences() -> list[str]:
    """Return the sentences, sorted by language."""
    return files(__package__).joinpath(f"{SENTENCES}.txt").read_text(encoding="utf-8").splitlines()


def tokenize(text: TextConfig, config: EncoderConfig) -> TokenizedSentences:
    """Tokenise the sentences, without those that the model cannot take whole or that have the ids of another one.

    The default prompt may append tokens, as in a server. In a pair, the second sentence is the next one of the file.
    """
    default = next((each for each in text.prompts if each.name == text.default_prompt), Prompt("", "", 0))
    distinct = {tuple(encoding.ids): encoding.type_ids for encoding in _encode(text)}
    sequences = [_sequence(ids, types, default, config) for ids, types in distinct.items()]
    fitting = [each for each in sequences if config.min_tokens <= len(each) <= text.max_tokens]
    measured = [ids for index, ids in enumerate(fitting) if index % _CALIBRATION_STEP]
    return TokenizedSentences(fitting[::_CALIBRATION_STEP], measured)


def _encode(text: TextConfig) -> list[Encoding]:
    tokenizer, texts = Tokenizer.from_str(text.tokenizer), sentences()
    if not text.pairs:
        return tokenizer.encode_batch(texts)
    pairs = list(pairwise(texts))
    if text.pair_template is None:
        return tokenizer.encode_batch(pairs)
    joined = [text_of_pair(text.pair_template, pair) for pair in pairs]
    return tokenizer.encode_batch(joined, add_special_tokens=False)


def _sequence(ids: tuple[int, ...], types: list[int], prompt: Prompt, config: EncoderConfig) -> Sequence:
    """Return token ids [n], or with their types [n, 2] if the encoder has types."""
    if config.token_types:
        return np.stack([ids, types], axis=1)
    return np.array([*ids, *[prompt.expansion_id] * (prompt.expanded_tokens - len(ids))])
