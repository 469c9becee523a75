"""Pairs in the template of a language model, which reads a pair as one text, and how truncation shortens them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import PairTemplate
from headwaiter_proto.rules.pairs import Pair, kept_tokens, text_of_pair


class TemplatedPairs:
    """Finds the tokens of a template and of the texts in it.

    Attributes:
        characters: number of characters of the template.
        ids: token ids of the template around two empty texts.
    """

    def __init__(self, template: PairTemplate, tokenizer: Tokenizer) -> None:
        self._template, self._tokenizer = template, tokenizer
        self.characters = len(self.text(("", "")))
        self.ids: list[int] = self._encode("").ids
        self._end = self._end_of_template()

    def text(self, pair: Pair) -> str:
        """Return the text of a pair."""
        return text_of_pair(self._template, pair)

    def _encode(self, text: str) -> Any:
        """Return the encoding of a pair of two equal texts."""
        return self._tokenizer.encode(self.text((text, text)), add_special_tokens=False)

    def _end_of_template(self) -> NDArray[np.int64]:
        """Return the last tokens of every pair: those that two pairs of other texts have in common."""
        one, other = self._encode("0"), self._encode("1 2 3 4")
        equal = [a == b for a, b in zip(reversed(one.ids), reversed(other.ids), strict=False)]
        # Not the tokens of the texts, which may be equal too: those of unknown words.
        start = len(self.text(("0", "0"))) - len(self._template.after)
        most = sum(end > start for _, end in one.offsets)
        count = min(most, equal.index(False) if False in equal else 0)
        return np.array(one.ids[len(one.ids) - count :], np.int64)

    def truncate(
        self, encoding: Any, pair: Pair, max_tokens: int, pair_truncation: pb.PairTruncation, *, from_right: bool
    ) -> NDArray[np.int64]:
        """Return the token ids of a pair; if there are more than `max_tokens`, without some tokens of the two texts.

        The ids are still too many if the texts have too few tokens to drop.
        """
        ids = np.array(encoding.ids, np.int64)
        if len(ids) <= max_tokens:
            return ids
        texts = self._positions(encoding, pair)
        keep = ~np.isin(np.arange(len(ids)), np.concatenate(texts))
        room = max(0, max_tokens - int(keep.sum()))
        counts = kept_tokens([len(positions) for positions in texts], room, pair_truncation)
        cut = max_tokens - len(self._end)
        if from_right and counts[0] == len(texts[0]) and counts[1] and cut >= texts[1][0]:
            # As sentence-transformers, which cuts the whole text, and puts its end back.
            return np.concatenate((ids[:cut], self._end))
        for positions, count in zip(texts, counts, strict=True):
            keep[kept_positions(positions, count, from_right=from_right)] = True
        return ids[keep]

    def _positions(self, encoding: Any, pair: Pair) -> list[NDArray[np.intp]]:
        """Return the positions of the tokens of each text; tokens that a text shares with the template are left out."""
        begin, end = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
        positions, start = [], len(self._template.before)
        for text in pair:
            stop = start + len(text)
            # Some tokenizers leave spaces out of offsets: a token of spaces is then empty, and lies before its offset.
            starts_inside = np.where(begin < end, begin >= start, end > start)
            positions.append(np.flatnonzero(starts_inside & (end <= stop)))
            start = stop + len(self._template.between)
        return positions


def kept_positions(positions: NDArray[np.intp], count: int, *, from_right: bool) -> NDArray[np.intp]:
    """Return the positions of the `count` tokens of a text that remain if tokens are dropped from one end."""
    return positions[:count] if from_right else positions[len(positions) - count :]
