"""The files of settings that sentence-transformers reads count, and no others."""

from pathlib import Path
from typing import Any

import pytest

from headwaiter_export.checkpoints.reader import read_checkpoint
from tests.support.checkpoints import write_json
from tests.support.export.compared_models import expected_text_vectors, save_embedder, text_vectors
from tests.support.export.helpers import assert_close, edit_json
from tests.support.tiers import exhaustive

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    "files",
    [
        {"sentence_bert_config.json": {}, "sentence_roberta_config.json": {"max_seq_length": 9}},
        {
            "sentence_xlnet_config.json": {"max_seq_length": 9},
            "sentence_xlm-roberta_config.json": {"max_seq_length": 7},
        },
        {"sentence_mpnet_config.json": {"max_seq_length": 9}},
        *exhaustive(
            {},
            {"sentence_bert_config.json": {}},
            {"sentence_camembert_config.json": {"max_seq_length": 9}, "sentence_albert_config.json": []},
            {"sentence_distilbert_config.json": {"do_lower_case": True}, "sentence_mpnet_config.json": []},
        ),
    ],
)
def test_the_first_file_with_fields_counts(files: dict[str, Any], tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    save_embedder(tmp_path)
    (tmp_path / "sentence_bert_config.json").unlink()
    for name, content in files.items():
        write_json(tmp_path / name, content)
    text = read_checkpoint(tmp_path).text
    assert text is not None
    assert text.max_tokens == SentenceTransformer(str(tmp_path), device="cpu").max_seq_length
    for one, other in zip(text_vectors(tmp_path), expected_text_vectors("SentenceTransformer")(tmp_path), strict=True):
        assert_close(one, other)


def test_settings_beside_a_transformer_without_modules_are_not_read(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    save_embedder(tmp_path)
    (tmp_path / "modules.json").unlink()
    edit_json(tmp_path / "sentence_bert_config.json", do_lower_case=True)
    text = read_checkpoint(tmp_path).text
    assert text is not None
    assert text.max_tokens == SentenceTransformer(str(tmp_path), device="cpu").max_seq_length == 40
    assert text.prompts == ()
