"""A served head of question answering gives the logits of `transformers`, and finds the answer in the text."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from headwaiter_client import best_answer
from tests.support.checkpoints import write_json
from tests.support.e2e.exported import export_checkpoint
from tests.support.e2e.in_process_server import connect, serving
from tests.support.export.family_examples import save_example
from tests.support.export.tokenizer_folders import word_piece

QUESTION, TEXTS = (
    "is the bread fresh?",
    ["rain falls on the stone; fresh bread is on the table.", "a table — for two", ""],
)


async def test_the_answers_equal_those_of_transformers(tmp_path: Path) -> None:
    tokenizer = word_piece()
    model = save_example(tmp_path, "Bert", "ForQuestionAnswering", vocab_size=tokenizer.get_vocab_size())
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "model_max_length": 24})
    export_checkpoint(tmp_path, tmp_path / "bundle", "reader")
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    async with serving(tmp_path / "bundle") as server, connect(server) as client:
        found = await client.classify([(QUESTION, text) for text in TEXTS], offsets=True, truncation="right")
        assert found.labels == ("start", "end")
        # The offsets of a text without a question are positions in this text.
        alone = await client.classify([TEXTS[0]], offsets=True, truncation="right")
    assert np.array_equal(alone.offsets[0][1], [0, 4])
    for text, scores, offsets in zip(TEXTS, found.token_scores, found.offsets, strict=True):
        given = reference([QUESTION], [text], return_tensors="pt", return_offsets_mapping=True, truncation=True)
        positions, number = given.pop("offset_mapping")[0].numpy(), given.sequence_ids(0)
        with torch.inference_mode():
            answer = model(**given)
        expected = torch.stack((answer.start_logits[0], answer.end_logits[0]), -1).numpy()
        np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)
        in_text = np.array([each == 1 for each in number])
        np.testing.assert_array_equal(offsets, np.where(in_text[:, None], positions, 0))
        if not text:
            with pytest.raises(ValueError, match="second text"):
                best_answer(scores, offsets)
            continue
        found_answer = best_answer(scores, offsets, 3)
        sums = {
            (i, j): expected[i, 0] + expected[j, 1]
            for i in np.flatnonzero(in_text)
            for j in np.flatnonzero(in_text)
            if 0 <= j - i < 3
        }
        first, last = max(sums, key=lambda place: sums[place])
        assert (found_answer.begin, found_answer.end) == (positions[first, 0], positions[last, 1])
