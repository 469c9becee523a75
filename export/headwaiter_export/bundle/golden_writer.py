"""The golden inputs: sequences of the reference with PyTorch's outputs, with which a server checks a bundle again."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.reference import SHORT_TOKENS, Reference, concatenate, long_lengths, operations
from headwaiter_server.runtime.packing import pack

# Most floating-point operations of the longer sequence, which every server runs when it starts: 8,192 tokens of a model
# like BERT-base need 4e12, as many as 18 sequences of 1,024 tokens.
_MOST_GOLDEN_OPERATIONS = 5e12
# Hidden rows of a sequence of more than 1,024 tokens in the golden inputs. All rows of 8,192 tokens would take 25 MB.
_LONG_HIDDEN_ROWS = 512


def write_golden(reference: Reference, path: Path) -> None:
    """Write the sequences that a server runs: those of up to 1,024 tokens, and one of `golden_lengths`."""
    long = golden_lengths(reference.config)
    reference = reference.only(lambda tokens: tokens <= SHORT_TOKENS or tokens in long)
    outputs, lengths = concatenate(reference.outputs), [len(sequence) for sequence in reference.sequences]
    rows = pack(reference.sequences).feeds(reference.config.row_inputs)
    arrays: dict[str, Any] = {
        **rows,
        "lengths": np.array(lengths, np.int32),
    }
    if outputs.hidden is not None:
        kept = _golden_rows(lengths)
        arrays["hidden"] = outputs.hidden[kept]
        if len(kept) < len(outputs.hidden):
            arrays["hidden_rows"] = kept
    if outputs.pooled is not None:
        arrays["pooled"] = outputs.pooled
    if outputs.logits is not None:
        arrays["logits"] = np.concatenate(outputs.logits)
    np.savez(path, **arrays)


def golden_lengths(config: EncoderConfig) -> list[int]:
    """Return the longest of `long_lengths` that a server can run in a short time, if there is one."""
    return [n for n in long_lengths(config) if operations(config, n) <= _MOST_GOLDEN_OPERATIONS][-1:]


def _golden_rows(lengths: list[int]) -> NDArray[np.int64]:
    """Return the hidden rows to store: all of a short sequence; of a long one, evenly spaced rows with both ends."""
    starts = np.cumsum([0, *lengths[:-1]])
    counts = [n if n <= SHORT_TOKENS else _LONG_HIDDEN_ROWS for n in lengths]
    ranges = zip(starts, lengths, counts, strict=True)
    return np.concatenate([np.linspace(start, start + n - 1, count, dtype=np.int64) for start, n, count in ranges])
