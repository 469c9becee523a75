"""A server of a DeBERTa reranker gives the scores and the hidden rows of `transformers`."""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from headwaiter_export.cli import main
from tests.support.checkpoints import write_json
from tests.support.e2e.in_process_server import connect, serving
from tests.support.export.family_examples import save_example
from tests.support.export.helpers import assert_close, assert_close_to_scale
from tests.support.export.tokenizer_folders import BERT_TOKENS, unigram

pytestmark = pytest.mark.usefixtures("starts_processes", "runs_graphs", "runs_transformers", "packed_cpu_alone")

QUERY = "two tables for rain"
DOCUMENTS = ["fresh bread", "the rain is good", "a table for two, please " * 2, "Быстрая лиса", "naïve café " * 3]


@pytest.mark.exhaustive
async def test_a_served_reranker_equals_transformers(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    sizes = {"num_labels": 1, "vocab_size": 400, "num_hidden_layers": 1}
    model = save_example(folder, "DebertaV2", "ForSequenceClassification", **sizes)
    unigram(special_tokens=BERT_TOKENS).save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "DebertaV2Tokenizer"})
    with redirect_stdout(StringIO()):
        assert main(["checkpoint", str(folder), "-o", str(tmp_path / "bundle")]) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        expected = [
            model(**tokenizer(QUERY, each, return_tensors="pt"), output_hidden_states=True) for each in DOCUMENTS
        ]
    scores = [float(each.logits.sigmoid()) for each in expected]
    async with serving(tmp_path / "bundle") as server, connect(server) as client:
        ranking = await client.rerank(QUERY, DOCUMENTS)
        sent = [tokenizer(QUERY, each)["input_ids"] for each in DOCUMENTS]
        encoding = await client.encode_tokens(sent)
    assert [each.index for each in ranking.documents] == np.argsort(-np.array(scores)).tolist()
    assert_close(np.array([each.score for each in ranking.documents]), np.sort(scores)[::-1])
    assert encoding.hidden is not None
    for rows, each in zip(encoding.hidden, expected, strict=True):
        assert_close_to_scale(rows, each.hidden_states[-1][0].numpy())
