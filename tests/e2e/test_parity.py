"""Results of the client equal those of transformers' BertModel for the same checkpoint."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from bench.loads.traces import sentences
from headwaiter_client import AsyncClient
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.encoder.reference import random_sequences, run_in_pytorch
from headwaiter_export.graphs.float16 import limiting_magnitude
from headwaiter_export.graphs.ranges import ActivationRanges
from testbed.server_process import RunningServer

# The first run downloads and exports the model.
pytestmark = pytest.mark.timeout(600)

POOLED_MAX_ABS = 1e-5
HIDDEN_MAX_ABS = 1e-4
SENTENCES = 250
TASKS = 16
MAX_SENTENCES_PER_REQUEST = 12
# The shortest lengths, lengths around powers of two, and the longest length.
LENGTHS = (1, 2, 3, 127, 128, 511, 512)


class Oracle:
    """BERT of transformers in float32 with eager attention, mean pooling and unit-length vectors."""

    def __init__(self, checkpoint: Path) -> None:
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(checkpoint)
        self._bert: Any = transformers.BertModel.from_pretrained(
            checkpoint, attn_implementation="eager", dtype=torch.float32
        ).eval()
        self.vocabulary_size: int = self._bert.config.vocab_size

    def tokens(self, text: str) -> NDArray[np.int64]:
        """Return the ids [n] of a text, without truncation."""
        return np.array(self._tokenizer(text, truncation=False)["input_ids"], np.int64)

    @torch.inference_mode()
    def hidden(self, sequences: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
        """Return the rows [n_i, width] of each sequence; a batch holds sequences of one length, without padding."""
        by_length: dict[int, list[int]] = defaultdict(list)
        for index, ids in enumerate(sequences):
            by_length[len(ids)].append(index)
        rows: dict[int, NDArray[np.float32]] = {}
        for indices in by_length.values():
            batch = torch.from_numpy(np.stack([sequences[index] for index in indices]))
            rows.update(zip(indices, self._bert(batch).last_hidden_state.numpy(), strict=True))
        return [rows[index] for index in range(len(sequences))]

    @staticmethod
    def pooled(hidden: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return the unit-length means [sequences, width] of rows."""
        means = torch.stack([torch.from_numpy(rows).mean(dim=0) for rows in hidden])
        return torch.nn.functional.normalize(means, dim=1).numpy()


@pytest.fixture(scope="module")
def oracle(real_checkpoint: Path) -> Oracle:
    return Oracle(real_checkpoint)


@pytest.fixture
async def client(real_server: RunningServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(real_server.address, timeout_s=60) as connected:
        yield connected


async def test_concurrent_groups_of_sentences_equal_transformers(client: AsyncClient, oracle: Oracle) -> None:
    longest = (await client.model()).max_text_tokens
    texts = [text for text in sentences() if len(oracle.tokens(text)) <= longest][:SENTENCES]
    assert len(texts) == SENTENCES
    expected = oracle.hidden([oracle.tokens(text) for text in texts])
    groups = iter(random_groups(SENTENCES, Random(0)))
    pooled: dict[int, NDArray[np.float32]] = {}
    hidden: dict[int, NDArray[np.float32]] = {}

    async def send_groups() -> None:
        for group in groups:
            encoding = await client.encode([texts[index] for index in group], hidden=True)
            pooled.update(zip(group, encoding.pooled, strict=True))
            hidden.update(zip(group, encoding.hidden, strict=True))

    await asyncio.gather(*(send_groups() for _ in range(TASKS)))
    indices = range(SENTENCES)
    assert_near(np.stack([pooled[index] for index in indices]), oracle.pooled(expected), POOLED_MAX_ABS)
    assert_near(np.concatenate([hidden[i] for i in indices]), np.concatenate(expected), HIDDEN_MAX_ABS)


@pytest.mark.parametrize("lengths", [*([length] for length in LENGTHS), list(LENGTHS)], ids=str)
async def test_extreme_lengths_alone_and_together_equal_transformers(
    client: AsyncClient, oracle: Oracle, lengths: list[int]
) -> None:
    random = np.random.default_rng(0)
    sequences = [random.integers(0, oracle.vocabulary_size, length) for length in lengths]
    encoding = await client.encode_tokens(sequences, hidden=True)
    expected = oracle.hidden(sequences)
    assert_near(encoding.pooled, oracle.pooled(expected), POOLED_MAX_ABS)
    assert_near(np.concatenate(encoding.hidden), np.concatenate(expected), HIDDEN_MAX_ABS)


def test_the_numbers_of_a_trained_model_fit_fused_norms_and_float16(real_checkpoint: Path) -> None:
    encoder = read_checkpoint(real_checkpoint).encoder
    ranges = ActivationRanges(encoder)
    with ranges.watch(encoder):
        run_in_pytorch(encoder, random_sequences(encoder.config, (1, 30, 100)), ranges.sequence)
    assert 0 < ranges.norm_ratio < 1
    assert ranges.fuse_norms
    assert limiting_magnitude(ranges.magnitudes)[1] < 1000


def assert_near(actual: NDArray[Any], expected: NDArray[np.float32], max_abs: float) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=max_abs)


def random_groups(count: int, random: Random) -> Iterator[range]:
    """Split range(count) into consecutive groups of random sizes."""
    start = 0
    while start < count:
        end = min(start + random.randint(1, MAX_SENTENCES_PER_REQUEST), count)
        yield range(start, end)
        start = end
