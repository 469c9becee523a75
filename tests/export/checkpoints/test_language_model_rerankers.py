"""A language model that reranks by the logits of two words gives the scores of `sentence-transformers`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwaiter_export.checkpoints.reader import read_checkpoint
from tests.support.export.helpers import assert_checkpoint_refused, assert_close, changed_tensors, edit_json
from tests.support.export.language_model_reranker import TEMPLATE, expected_scores, save_reranker, scores
from tests.support.tiers import exhaustive

IDENTITY = {"activation_fn": "torch.nn.modules.linear.Identity"}
PROMPTS = {"prompts": {"web": "Find pages", "law": "Find laws"}, "default_prompt_name": "law"}


def _document(expression: str) -> str:
    """Return the template with another expression for the document."""
    usual = '{{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}'
    other = expression.replace("content", "messages[-1].content | string", 1).replace("| first", "", 1)
    assert usual in TEMPLATE
    return TEMPLATE.replace(usual, "{{ " + other + " }}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("settings", "score", "choices"),
    [
        # Loading a model twice takes a second.
        *exhaustive(({}, {}, {})),
        (IDENTITY, {"false_token_id": None}, {"tie_word_embeddings": False}),
        *exhaustive((PROMPTS, {}, {})),
    ],
)
def test_scores_equal_those_of_sentence_transformers(
    settings: dict[str, Any], score: dict[str, Any], choices: dict[str, Any], tmp_path: Path
) -> None:
    save_reranker(tmp_path, settings=settings, **choices)
    edit_json(tmp_path / "1_LogitScore" / "config.json", **score)
    expected = expected_scores(tmp_path)
    assert_close(scores(tmp_path), expected)
    assert np.ptp(expected) > 0.01
    left_out = [line for line in read_checkpoint(tmp_path).assumptions if "left out: web" in line]
    assert len(left_out) == ("prompts" in settings)
    assert all("law" in line for line in left_out)


# Reading a tokenizer twice takes half a second.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("template", "facts"),
    [
        (TEMPLATE.replace("| first }}\n<Document>", "| first | trim }}\n<Document>"), ["same for every pair"]),
        (_document("content | first or 'none'"), ["same for every pair"]),
        (_document("content | first | truncate(300)"), ["same for every pair"]),
        (_document("content | first | replace('<|im_end|>', '')"), ["same for every pair"]),
        (TEMPLATE + "{{ strftime_now('%d') }}", ["strftime_now"]),
        (TEMPLATE + "{% if messages[1].content|length > 99 %}{{ raise_exception('long') }}{% endif %}", ["long"]),
        (TEMPLATE + "a" * 60_000, ["60,", "shorten"]),
        (TEMPLATE + "word " * 450, ["tokens", "shorten"]),
        (TEMPLATE.replace('"document"', '"user"'), ["document once"]),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", ["query once"]),
        ("{{ messages[1].content }} {{ messages[0].content }}", ["query once"]),
        ("{{ raise_exception('pairs are not supported') }}", ["pairs are not supported"]),
        ("{{", ["chat template"]),
    ],
)
def test_a_template_that_is_no_text_around_two_texts_is_refused(
    template: str, facts: list[str], tmp_path: Path
) -> None:
    save_reranker(tmp_path, template)
    assert_checkpoint_refused(tmp_path, *facts)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("file", "changes", "facts"),
    [
        ("1_LogitScore/config.json", {"true_token_id": 505}, ["true_token_id 505", "505 token ids"]),
        ("1_LogitScore/config.json", {"true_token_id": 504}, ["false_token_id 504", "true_token_id"]),
        ("sentence_bert_config.json", {"modality_config": None}, ["no modality_config"]),
        ("config.json", {"architectures": ["Qwen3Model"]}, ["Qwen3Model", "ForCausalLM"]),
        ("config.json", {"model_type": "eurobert"}, ["eurobert", "LogitScore"]),
        ("tokenizer_config.json", {"model_input_names": ["input_ids"]}, ["model_input_names", "attention_mask"]),
        ("sentence_bert_config.json", {"max_seq_length": 9}, ["template of pairs", "at most 9", "max_seq_length"]),
    ],
)
def test_a_setting_that_cannot_be_reproduced_is_refused(
    file: str, changes: dict[str, Any], facts: list[str], tmp_path: Path
) -> None:
    save_reranker(tmp_path)
    edit_json(tmp_path / file, **changes)
    assert_checkpoint_refused(tmp_path, *facts)


@pytest.mark.exhaustive
def test_a_second_default_template_is_refused(tmp_path: Path) -> None:
    save_reranker(tmp_path)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "default.jinja").write_text(TEMPLATE)
    assert_checkpoint_refused(tmp_path, "default.jinja", "second chat template")


@pytest.mark.exhaustive
def test_a_table_that_differs_from_the_tied_one_is_refused(tmp_path: Path) -> None:
    save_reranker(tmp_path)
    with changed_tensors(tmp_path) as tensors:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    assert_checkpoint_refused(tmp_path, "tie_word_embeddings", "lm_head.weight")
