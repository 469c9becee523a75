"""The sentences that calibrate int8, and those whose nearest neighbours are compared.

The sentences are part of this package, so a bundle does not depend on what else is installed. They were written for
this purpose, in 29 languages and 14 scripts, with code, log lines and numbers.
"""

from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from tokenizers import Tokenizer

from headwaiter_export.checkpoints.texts import Prompt, TextConfig
from headwaiter_export.encoder.reference import Sequence

# The file and its version. parity.json names it, so a changed file needs another number.
SENTENCES = "sentences-1"
# Every second sentence calibrates: the file is sorted by language, so each half has all languages.
_CALIBRATION_STEP = 2


@dataclass(frozen=True, eq=False)
class TokenizedSentences:
    """Token ids of distinct sentences that fit a model.

    Attributes:
        calibration: the sentences that calibrate int8.
        measured: the sentences whose nearest neighbours are compared; calibration has not seen them.
    """

    calibration: list[Sequence]
    measured: list[Sequence]


def sentences() -> list[str]:
    """Return the sentences, sorted by language."""
    return files(__package__).joinpath(f"{SENTENCES}.txt").read_text(encoding="utf-8").splitlines()


def tokenize(text: TextConfig, min_tokens: int) -> TokenizedSentences:
    """Tokenise the sentences, without those that the model cannot take whole or that have the ids of another one.

    The default prompt may append tokens, as in a server.
    """
    tokenizer = Tokenizer.from_str(text.tokenizer)
    distinct = dict.fromkeys(tuple(encoding.ids) for encoding in tokenizer.encode_batch(sentences()))
    default = next((each for each in text.prompts if each.name == text.default_prompt), Prompt("", "", 0))
    filled = ([*ids, *[default.expansion_id] * (default.expanded_tokens - len(ids))] for ids in distinct)
    fitting = [np.array(ids) for ids in filled if min_tokens <= len(ids) <= text.max_tokens]
    measured = [ids for index, ids in enumerate(fitting) if index % _CALIBRATION_STEP]
    return TokenizedSentences(fitting[::_CALIBRATION_STEP], measured)
