"""A padding token inside a sequence takes no position in RoBERTa and its relatives, as in `transformers`."""

from pathlib import Path

import numpy as np
import pytest

from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.encoder.reference import random_sequences, run_in_pytorch
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.portable import Portable
from tests.support.checkpoints import bert_hidden
from tests.support.export.family_checkpoints import save_family
from tests.support.export.helpers import assert_close, run_graph, write_graphs

PAD = 3
# In the middle, at both ends, alone, and only padding tokens, of a vocabulary that begins after id 4.
SEQUENCES = [np.array(ids) for ids in ([5, PAD, 6, 7], [PAD, 5, 6], [5, 6, PAD, PAD], [PAD], [PAD] * 3, [9, 8, 7])]
FAMILIES = ("Roberta", "XLMRoberta", "XLMRobertaXL", "Camembert", "Data2VecText", "MPNet")


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_follow_the_ids(family: str, tmp_path: Path) -> None:
    sequences, pad = SEQUENCES, PAD
    if family == "MPNet":  # which ignores pad_token_id
        pad = 1
        sequences = [np.where(ids == PAD, pad, ids) for ids in SEQUENCES]
    model = save_family(tmp_path, family, pad_token_id=pad)
    encoder = read_checkpoint(tmp_path).encoder
    assert encoder.config.pad_id == pad
    for ids in sequences:
        assert_close(run_in_pytorch(encoder, [ids])[0].hidden, bert_hidden(model, ids))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("layout", [PackedCpu, Portable])
def test_positions_follow_the_ids_in_a_batch(layout: type[PackedCpu] | type[Portable], tmp_path: Path) -> None:
    model = save_family(tmp_path, "Roberta", pad_token_id=PAD, num_hidden_layers=1)
    path = write_graphs(read_checkpoint(tmp_path).encoder, tmp_path, layout)[layout]
    expected = np.concatenate([bert_hidden(model, ids) for ids in SEQUENCES])
    assert_close(run_graph(path, "cpu", SEQUENCES).hidden, expected)


def test_golden_inputs_contain_padding_tokens() -> None:
    config = EncoderConfig(vocabulary_size=50_000, d_model=8, heads=2, layers=1, d_ff=8, max_tokens=100, pad_id=1)
    assert (np.concatenate(random_sequences(config, [100] * 8)) == 1).mean() == pytest.approx(0.1, abs=0.05)


@pytest.mark.parametrize("wrong", [{"pad_id": 60}, {"pad_id": -1}, {"pad_id": True}, {"positions": "sinusoidal"}])
def test_a_wrong_pad_id_is_refused(wrong: dict[str, object]) -> None:
    fields = {"vocabulary_size": 60, "d_model": 8, "heads": 2, "layers": 1, "d_ff": 8, "max_tokens": 9, "pad_id": 1}
    with pytest.raises(ConfigError, match="pad_id"):
        EncoderConfig.from_dict(fields | wrong)
