"""An encoder with a decoder that reranks by the first word of its answer gives the scores of transformers."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer

from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.checkpoints.word_scores import PairQuestion
from headwaiter_export.config.head import HeadConfig, ScoreFunction
from headwaiter_export.encoder.reference import Reference, concatenate, run_in_pytorch
from headwaiter_export.graphs.int8 import quantize
from headwaiter_proto.encoder_pb2 import PRECISION_INT8
from headwaiter_proto.rules.pairs import text_of_pair
from headwaiter_server.runtime.numeric_tolerances import difference, violation
from tests.support.checkpoints import write_json
from tests.support.export.family_examples import save_example
from tests.support.export.helpers import (
    assert_close,
    assert_close_to_scale,
    changed_tensors,
    drop_fields,
    edit_json,
    random_sequences,
)
from tests.support.export.language_model_reranker import save_reranker
from tests.support.export.tokenizer_folders import byte_level_bpe, t5
from tests.support.oracle import Array
from tests.support.tiers import exhaustive

QUESTION = "Query: {query} Document: {document} Relevant:"
PAIRS = [
    ("rain", "falls on the stone"),
    ("", ""),
    ("two\n", "\ttables "),
    ("a </s> b", "雨 İ e\u0301"),
    ("x", "y " * 20),
]
MONOT5 = PairQuestion(QUESTION, "true", "false")


def save_monot5(folder: Path, family: str = "T5", **choices: Any) -> None:
    """Save a tiny random monoT5 with a tokenizer in which "true" and "false" are one token each."""
    tokenizer = t5()
    tokenizer.add_tokens(["true", "false"])
    vocabulary = {"vocab_size": tokenizer.get_vocab_size(), "n_positions": 200}
    save_example(folder, family, "ForConditionalGeneration", **vocabulary, **choices)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"extra_ids": 10, "additional_special_tokens": [f"<extra_id_{i}>" for i in range(10)]}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer", **settings})
    transformers.logging.set_verbosity_error()


def expected_logits(folder: Path) -> Array:
    """Return the logit of "true" less that of "false", at the first step of the decoder; a score is its sigmoid.

    The authors of monoT5 compute the softmax of the two logits, which is the same: https://arxiv.org/abs/2003.06713.
    """
    # In float64, because the scores of attention of random weights are large, and so are rounding errors of float32.
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval().double()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    yes, no = (tokenizer.convert_tokens_to_ids(word) for word in ("true", "false"))
    differences = []
    for query, document in PAIRS:
        ids = tokenizer(QUESTION.format(query=query, document=document), return_tensors="pt").input_ids
        start = torch.full((1, 1), model.config.decoder_start_token_id)
        with torch.inference_mode():
            logits = model(input_ids=ids, decoder_input_ids=start).logits[0, 0]
        differences.append((logits[yes] - logits[no]).item())
    return np.array(differences)


def logits(folder: Path) -> Array:
    """Return the logits that the export gives."""
    loaded = read_checkpoint(folder, question=MONOT5)
    assert loaded.text is not None
    assert loaded.text.pair_template is not None
    tokenizer = Tokenizer.from_str(loaded.text.tokenizer)
    texts = [text_of_pair(loaded.text.pair_template, pair) for pair in PAIRS]
    ids = [np.array(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    outputs = run_in_pytorch(loaded.encoder.double(), ids)
    return np.concatenate([each.logits[0][0] for each in outputs if each.logits])


def _own_table(folder: Path) -> None:
    """Give the checkpoint a table for its logits, as T5 1.1 has."""
    with changed_tensors(folder) as tensors:
        tensors["lm_head.weight"] = tensors["shared.weight"].roll(1, 0).contiguous()


def _older_config(folder: Path, **fields: Any) -> None:
    """Write config.json as transformers 4 does, without the field that says whether the last rows are scaled."""
    drop_fields(folder / "config.json", "scale_decoder_outputs")
    edit_json(folder / "config.json", **fields)


# T5 1.1 has a table of its own, and does not scale its last rows.
@pytest.mark.parametrize(
    ("choices", "changes"),
    [
        ({}, []),
        ({"tie_word_embeddings": False}, [_own_table]),
        ({"feed_forward_proj": "relu", "num_decoder_layers": 3}, [_older_config]),
        ({"family": "UMT5"}, []),
        *exhaustive(
            ({}, [partial(_older_config, tie_word_embeddings=False), _own_table]),
            ({"family": "MT5"}, [_own_table]),
            ({"family": "MT5"}, [partial(_older_config, tie_word_embeddings=True)]),
            ({"family": "UMT5"}, [partial(_older_config, tie_word_embeddings=False), _own_table]),
        ),
    ],
)
def test_logits_equal_those_of_transformers(
    choices: dict[str, Any], changes: list[Callable[[Path], None]], tmp_path: Path
) -> None:
    save_monot5(tmp_path, **choices)
    for change in changes:
        change(tmp_path)
    actual, expected = logits(tmp_path), expected_logits(tmp_path)
    # transformers' norms of T5 compute the variance in float32, also in a model in float64.
    assert_close_to_scale(actual, expected, 3e-5)
    # The scores of pairs.
    assert_close(1 / (1 + np.exp(-actual)), 1 / (1 + np.exp(-expected)))
    assert np.ptp(expected) > 0.1
    assert read_checkpoint(tmp_path, question=MONOT5).encoder.config.head == HeadConfig(
        ("LABEL_0",), ScoreFunction.SIGMOID, bias=False
    )


@pytest.mark.parametrize(
    ("question", "facts"),
    [
        (PairQuestion("{document} {query}", "true", "false"), ["{query}", "{document}"]),
        (PairQuestion("{query} {query} {document}", "true", "false"), ["{query} once"]),
        (PairQuestion("{query}", "true", "false"), ["{document} once"]),
        (PairQuestion(QUESTION, "true", "not true"), ["not true", "one token"]),
        (PairQuestion(QUESTION, "true", "true"), ["true", "same token"]),
        (PairQuestion(QUESTION + " word" * 200, "true", "false"), ["tokens", "200", "shorten"]),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(question: PairQuestion, facts: list[str], tmp_path: Path) -> None:
    save_monot5(tmp_path)
    with pytest.raises(CheckpointError) as raised:
        read_checkpoint(tmp_path, question=question)
    for fact in facts:
        assert fact in str(raised.value)


def test_a_checkpoint_that_says_how_it_reranks_takes_no_question(tmp_path: Path) -> None:
    save_reranker(tmp_path)
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        read_checkpoint(tmp_path, question=MONOT5)


def test_a_question_needs_a_language_model(tmp_path: Path) -> None:
    save_monot5(tmp_path)
    edit_json(tmp_path / "config.json", architectures=["T5EncoderModel"])
    with pytest.raises(CheckpointError, match="T5EncoderModel"):
        read_checkpoint(tmp_path, question=MONOT5)


@pytest.mark.parametrize(
    ("family", "choices", "other"), [("Gemma", {}, None), ("Qwen3", {"tie_word_embeddings": False}, "No")]
)
def test_a_language_model_answers_a_question_with_its_next_word(
    family: str, choices: dict[str, Any], other: str | None, tmp_path: Path
) -> None:
    tokenizer = byte_level_bpe()
    tokenizer.add_tokens(["Yes", "No"])
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 200}
    save_example(tmp_path, family, "ForCausalLM", **sizes, **choices)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    loaded = read_checkpoint(tmp_path, question=PairQuestion("A: {query}\nB: {document}\nSame?", "Yes", other))
    assert loaded.text is not None
    assert loaded.text.pair_template is not None
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = tokenizer.encode(text_of_pair(loaded.text.pair_template, ("rain", "stone")), add_special_tokens=False).ids
    with torch.inference_mode():
        words = model(torch.tensor([ids])).logits[0, -1]
    expected = words[tokenizer.token_to_id("Yes")] - (words[tokenizer.token_to_id(other)] if other else 0)
    (outputs,) = run_in_pytorch(loaded.encoder, [np.array(ids)])
    assert outputs.logits is not None
    assert_close_to_scale(outputs.logits[0], expected.numpy().reshape(1, 1))


def test_int8_keeps_layers_in_float32_until_the_logits_are_close(tmp_path: Path) -> None:
    save_monot5(tmp_path)
    encoder = read_checkpoint(tmp_path, question=MONOT5).encoder
    sequences = random_sequences(encoder.config, range(2, 40))
    quantized, float32_layers = quantize(encoder, Reference.compute(encoder), sequences)
    assert float32_layers
    expected, actual = (concatenate(run_in_pytorch(each, sequences)) for each in (encoder, quantized))
    assert violation(difference(actual, expected), PRECISION_INT8) is None
