"""ESM-2 as its checkpoints are: frequencies rounded to float16, masked tokens, proteins as texts."""

from pathlib import Path

import numpy as np
import pytest
import transformers
from torch import Tensor

from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.encoder.reference import run_in_pytorch
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.portable import Portable
from headwaiter_proto.rules.errors import Failures
from headwaiter_server.inputs.tokenizer import BundleTokenizer, TokenizeOptions, Truncation
from headwaiter_server.requests.threads import finish
from tests.support.checkpoints import bert_hidden
from tests.support.export.family_examples import save_example
from tests.support.export.helpers import (
    assert_checkpoint_refused,
    assert_close,
    changed_tensors,
    run_graph,
    token_ids,
    write_graphs,
)
from tests.support.export.tokenizer_cases import LINES, save_case
from tests.support.tiers import exhaustive

MASK, OTHER = 4, 7
FREQUENCIES = "rotary_embeddings.inv_freq"
PROTEINS = ["MKTAYIAKQR", "A<mask>G<mask>V", "ACDEFG HIKLM\nx"]


def store_frequencies(folder: Path, frequencies: Tensor, *, per_layer: bool) -> transformers.PreTrainedModel:
    """Replace the frequencies of a checkpoint, and return the model that `transformers` then loads."""
    # Older releases of transformers store them in each layer.
    names = [f"encoder.layer.{i}.attention.self.{FREQUENCIES}" for i in range(2)] if per_layer else [FREQUENCIES]
    with changed_tensors(folder) as tensors:
        for name in [name for name in tensors if name.endswith(FREQUENCIES)]:
            del tensors[name]
        tensors.update({name: frequencies.clone() for name in names})
    return transformers.EsmModel.from_pretrained(folder, attn_implementation="eager").eval()


@pytest.mark.parametrize("per_layer", [False, True])
def test_frequencies_keep_their_precision(per_layer: bool, tmp_path: Path) -> None:
    frequencies = save_example(tmp_path, "Esm").rotary_embeddings.inv_freq
    ids = np.random.default_rng(0).integers(5, 60, 24)
    for stored, rounded in ((frequencies, False), (frequencies.half().float(), True), (frequencies.half(), True)):
        model = store_frequencies(tmp_path, stored, per_layer=per_layer)
        encoder = read_checkpoint(tmp_path).encoder
        assert encoder.config.rotary_float16 == rounded
        assert_close(run_in_pytorch(encoder, [ids])[0].hidden, bert_hidden(model, ids))
        save_example(tmp_path, "Esm")


@pytest.mark.parametrize("factor", [1.001, 2.0])
def test_other_frequencies_are_refused(factor: float, tmp_path: Path) -> None:
    store_frequencies(tmp_path, save_example(tmp_path, "Esm").rotary_embeddings.inv_freq * factor, per_layer=False)
    with pytest.raises(CheckpointError, match=FREQUENCIES):
        read_checkpoint(tmp_path)


@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("layout", [PackedCpu, *exhaustive(Portable)])
def test_the_share_of_masked_tokens_is_that_of_the_own_sequence(
    layout: type[PackedCpu] | type[Portable], tmp_path: Path
) -> None:
    model = save_example(tmp_path, "Esm")
    path = write_graphs(read_checkpoint(tmp_path).encoder, tmp_path, layout)[layout]
    masked = [[OTHER], [OTHER, MASK], [MASK, MASK, OTHER, 8, 9], [OTHER, 8, 9], [MASK] * 6 + [OTHER]]
    sequences = [np.array(ids) for ids in masked]
    expected = [bert_hidden(model, ids) for ids in sequences]
    assert_close(run_graph(path, "cpu", sequences).hidden, np.concatenate(expected))
    # Masks alone: transformers divides by zero. The other sequences keep their rows.
    hidden = run_graph(path, "cpu", [np.array([MASK, MASK]), *sequences]).hidden
    assert hidden is not None
    assert np.isfinite(hidden).all()
    assert_close(hidden[2:], np.concatenate(expected))


def test_proteins_equal_transformers(tmp_path: Path) -> None:
    save_case(LINES["ESM"], tmp_path, lines=True)
    model = save_example(tmp_path, "Esm", mask_token_id=32)
    loaded, reference = read_checkpoint(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for protein, ids in zip(PROTEINS, token_ids(loaded, PROTEINS), strict=True):
        assert ids.tolist() == reference(protein)["input_ids"]
        (outputs,) = run_in_pytorch(loaded.encoder, [ids])
        assert_close(outputs.pooled, bert_hidden(model, ids).mean(0, keepdims=True))


@pytest.mark.parametrize("side", ["right", "left"])
def test_truncated_pairs_have_the_tokens_of_transformers(side: str, tmp_path: Path) -> None:
    save_case(LINES["ESM"], tmp_path, lines=True)
    save_example(tmp_path, "Esm", "ForSequenceClassification")
    text = read_checkpoint(tmp_path).text
    assert text is not None
    assert text.first_text_keeps_more
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path, truncation_side=side)
    options = TokenizeOptions(truncation=Truncation[side.upper()])
    pairs = [("L" * first, "A" * second) for first in range(1, 9) for second in range(1, 9)]
    for places in range(4, 12):
        tokenizer = BundleTokenizer(text.tokenizer.encode(), places, None, text.first_text_keeps_more)
        rows = finish(tokenizer.tokenize(pairs, options, Failures(keep=False), 9999))
        for pair, row in zip(pairs, rows, strict=True):
            expected = reference(*pair, truncation="longest_first", max_length=places)["input_ids"]
            assert row.ids.tolist() == expected, (pair, places)


@pytest.mark.parametrize("word", ["REA", "<mask>>", "<a<pad>"])
def test_a_vocabulary_of_words_is_refused(word: str, tmp_path: Path) -> None:
    save_case(LINES["ESM"], tmp_path, lines=True)
    save_example(tmp_path, "Esm")
    with (tmp_path / "vocab.txt").open("a") as file:
        file.write(f"{word}\n")
    assert_checkpoint_refused(tmp_path, "vocab.txt", word)
