"""Checkpoints with a head give the logits, the labels and the score function that `transformers` gives."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer

from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.head import ScoreFunction
from headwaiter_export.encoder.attention_layout import SingleSequence
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import concatenate, run_in_pytorch
from headwaiter_export.graphs.graph_layout import Packed
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.portable import Portable
from tests.support.checkpoints import save_sentence_transformer, save_tokenizer, write_json, write_modules_json
from tests.support.export.family_checkpoints import assert_equals_transformers, save_family
from tests.support.export.family_examples import save_example
from tests.support.export.feature_checkpoints import draw_input, input_rows, save_feature_model
from tests.support.export.helpers import (
    RUNTIMES,
    assert_checkpoint_refused,
    assert_close,
    assert_close_to_scale,
    changed_tensors,
    edit_json,
    run_graph,
    write_graphs,
)
from tests.support.export.tokenizer_folders import (
    ALBERT_TOKENS,
    BERT_TOKENS,
    byte_level_bpe,
    unigram,
    word_piece,
)
from tests.support.tiers import exhaustive

LABELS = {0: "no", 1: "perhaps", 2: "yes"}
WITHOUT_TYPES = ("DistilBert", "Qwen2", "Qwen3", "Llama", "Mistral", "Gemma", "Gemma2")


@pytest.mark.parametrize("kind", ["ForSequenceClassification", "ForTokenClassification"])
@pytest.mark.parametrize(
    ("name", "token_types"),
    [
        *((name, 2) for name in ("Bert", "Ernie", "MegatronBert", "RemBert", "Electra", "Albert", "RoFormer")),
        *((name, 2) for name in ("Deberta", "DebertaV2", "XLMRobertaXL", "NomicBert", "Gte")),
        *((name, 0) for name in ("Roberta", "Camembert", "XLMRoberta", "XLMRobertaXL", "Data2VecText", "MPNet", "Gte")),
        *((name, 0) for name in ("JinaEmbeddingsV3", *WITHOUT_TYPES)),
    ],
)
def test_a_head_equals_transformers(name: str, token_types: int, kind: str, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {} if name in WITHOUT_TYPES else {"type_vocab_size": token_types or 1}
    model = save_example(tmp_path, name, kind, id2label=LABELS, label2id={}, **sizes)
    encoder = read_checkpoint(tmp_path).encoder
    assert encoder.config.token_types == token_types
    assert encoder.config.head is not None
    assert encoder.config.head.labels == ("no", "perhaps", "yes")
    assert_equal_logits(encoder, model, (1, 2, 20), token_types)


WITH_ANSWERS = (
    *("Bert", "Roberta", "ModernBert", "DebertaV2", "Albert", "Camembert", "Data2VecText", "Deberta", "DistilBert"),
    *("Electra", "Ernie", "JinaEmbeddingsV3", "MPNet", "MegatronBert", "RemBert", "RoFormer", "XLMRoberta"),
    "XLMRobertaXL",
)


@pytest.mark.parametrize("name", [*WITH_ANSWERS[:4], *exhaustive(*WITH_ANSWERS[4:])])
def test_the_logits_of_answers_equal_transformers(name: str, tmp_path: Path) -> None:
    model = save_example(tmp_path, name, "ForQuestionAnswering")
    encoder = read_checkpoint(tmp_path).encoder
    head = encoder.config.head
    assert head is not None
    assert (head.labels, head.function, head.per_token) == (("start", "end"), ScoreFunction.IDENTITY, True)
    assert_equal_logits(encoder, model, (1, 2, 20), encoder.config.token_types)


@pytest.mark.parametrize("name", ["Qwen3", "Bart", "T5"])
def test_the_answers_of_language_models_and_decoders_are_refused(name: str, tmp_path: Path) -> None:
    save_example(tmp_path, name, "ForQuestionAnswering")
    assert_checkpoint_refused(tmp_path, "architectures", f"{name}ForQuestionAnswering")


# transformers has no class that scores the tokens of Gemma 3 or BART. T5 scores tokens without its decoder.
@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("Gemma3", "TextForSequenceClassification", {}),
        ("Bart", "ForSequenceClassification", {}),
        # Its decoder may have another number of layers than its encoder.
        ("T5", "ForSequenceClassification", {"num_decoder_layers": 1, "decoder_start_token_id": 5}),
        ("T5", "ForTokenClassification", {}),
        ("MT5", "ForSequenceClassification", {}),
        ("UMT5", "ForSequenceClassification", {"num_decoder_layers": 1}),
        ("UMT5", "ForTokenClassification", {}),
    ],
)
def test_a_head_of_other_names_equals_transformers(
    name: str, kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    model = save_example(tmp_path, name, kind, id2label=LABELS, label2id={}, **settings)
    assert_equal_logits(read_checkpoint(tmp_path).encoder, model, (1, 2, 20))


@pytest.mark.parametrize(("end", "accepted"), [("</s>", True), ("<mask>", False)])
def test_texts_must_end_with_the_token_whose_row_is_scored(end: str, accepted: bool, tmp_path: Path) -> None:
    tokenizer = byte_level_bpe()
    # The class of transformers also ends texts with this token.
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "BartTokenizer", "sep_token": end})
    save_example(tmp_path, "Bart", "ForSequenceClassification", vocab_size=tokenizer.get_vocab_size())
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    if accepted:
        text = read_checkpoint(tmp_path).text
        assert text is not None
        assert text.pairs
    else:
        assert_checkpoint_refused(
            tmp_path, "eos_token_id 2", "token 2", f"ends texts with {tokenizer.token_to_id(end)}"
        )


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("Bert", "ForQuestionAnswering", {}),
        ("Bert", "ForSequenceClassification", {"problem_type": "other", "id2label": {0: ""}}),
        ("Roberta", "ForSequenceClassification", {}),
        ("ModernBert", "ForTokenClassification", {}),
        ("DistilBert", "ForSequenceClassification", {}),
        ("Qwen3", "ForSequenceClassification", {}),
    ],
)
def test_an_embedder_of_sentence_transformers_has_no_head(
    name: str, kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    model = save_example(tmp_path, name, kind, **{**settings, "pad_token_id": 0, "problem_type": None})
    edit_json(tmp_path / "config.json", **settings)
    save_sentence_transformer(tmp_path)
    encoder = read_checkpoint(tmp_path).encoder
    assert encoder.config.head is None
    assert encoder.config.pooling is Pooling.MEAN
    assert_equals_transformers(encoder, model.base_model, (1, 20))
    with changed_tensors(tmp_path) as tensors:
        tensors["unknown.weight"] = torch.ones(1)
    assert_checkpoint_refused(tmp_path, "unknown.weight")


@pytest.mark.parametrize("kind", ["ForSequenceClassification", "ForTokenClassification"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"classifier_pooling": "mean", "classifier_dropout": 0.5},
        {"classifier_bias": True, "classifier_activation": "silu"},
        {"norm_bias": True, "classifier_activation": "tanh", "classifier_pooling": "mean"},
        {"classifier_activation": "gelu_new", "norm_eps": 0.1},
        {"classifier_activation": "relu", "hidden_activation": "silu", "num_labels": 1},
    ],
)
def test_a_head_of_modernbert_equals_transformers(settings: dict[str, Any], kind: str, tmp_path: Path) -> None:
    labels: dict[str, Any] = {} if "num_labels" in settings else {"id2label": LABELS, "label2id": {}}
    model = save_example(tmp_path, "ModernBert", kind, **labels, **settings)
    assert_equal_logits(read_checkpoint(tmp_path).encoder, model, (1, 2, 4, 5, 6, 24))


@pytest.mark.parametrize("activation", ["gelu", "tanh", "relu", "gelu_new", "silu"])
def test_a_head_of_deberta_equals_transformers_with_each_activation(activation: str, tmp_path: Path) -> None:
    settings = {"pooler_hidden_act": activation, "type_vocab_size": 2}
    model = save_example(tmp_path, "DebertaV2", "ForSequenceClassification", **settings)
    assert_equal_logits(read_checkpoint(tmp_path).encoder, model, (1, 2, 70), 2)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("ModernBert", "classifier_activation", "quick_gelu"),
        ("ModernBert", "classifier_pooling", "max"),
        ("ModernBert", "classifier_bias", "no"),
        ("DebertaV2", "pooler_hidden_act", "mish"),
        ("RoFormer", "hidden_act", "quick_gelu"),
        ("Qwen2", "pad_token_id", "5"),
    ],
)
def test_an_unsupported_field_of_a_head_is_named(name: str, field: str, value: Any, tmp_path: Path) -> None:
    save_example(tmp_path, name, "ForSequenceClassification")
    edit_json(tmp_path / "config.json", **{field: value})
    assert_checkpoint_refused(tmp_path, field, repr(value))


def test_a_bias_that_the_head_of_modernbert_lacks_is_named(tmp_path: Path) -> None:
    save_example(tmp_path, "ModernBert", "ForSequenceClassification", classifier_bias=True)
    edit_json(tmp_path / "config.json", classifier_bias=False)
    assert_checkpoint_refused(tmp_path, "head.dense.bias", "classifier_bias")


def assert_equal_logits(encoder: Encoder, model: Any, lengths: tuple[int, ...], token_types: int = 0) -> None:
    """Check the logits of random sequences of these lengths."""
    rng = np.random.default_rng(0)
    if model.config.model_type in ("t5", "mt5", "umt5"):
        # The scores of T5 are large, and so are rounding errors of float32: transformers' own exceed the bound.
        model, encoder = model.double(), encoder.double()
    for n in lengths:
        ids, types = rng.integers(2, 60, n), rng.integers(0, max(1, token_types), n)
        if model.config.is_encoder_decoder:
            ids[-1] = model.config.eos_token_id  # transformers scores the row of this token
        given = {"token_type_ids": torch.from_numpy(types)[None]} if token_types else {}
        layout = SingleSequence(n)
        with torch.inference_mode():
            answer = model(input_ids=torch.from_numpy(ids)[None], **given)
            if "start_logits" in answer:
                expected = torch.stack((answer.start_logits, answer.end_logits), -1)[0].numpy()
            else:
                expected = answer.logits[0].numpy()
            logits = encoder(torch.from_numpy(ids), layout, torch.from_numpy(types) if token_types else None)[2]
        assert logits is not None
        assert_close(logits.numpy() if expected.ndim == 2 else logits[0].numpy(), expected)


@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("layout", [PackedCpu, *exhaustive(*list(RUNTIMES)[1:])])
@pytest.mark.parametrize("name", ["Qwen2", *exhaustive("Gemma2")])
def test_a_head_of_a_decoder_scores_the_last_token_that_is_no_padding(
    name: str, layout: type[Packed] | type[Portable], tmp_path: Path
) -> None:
    model = save_example(tmp_path, name, "ForSequenceClassification", pad_token_id=5)
    encoder = read_checkpoint(tmp_path).encoder
    path = write_graphs(encoder, tmp_path, layout)[layout]
    sequences = [np.array(ids) for ids in ([7, 5, 5, 9], [7, 9, 5], [7, 5, 9, 5, 5, 5], [5, 5], [8])]
    with torch.inference_mode():
        expected = [model(input_ids=torch.from_numpy(ids)[None]).logits[0].numpy() for ids in sequences]
    for outputs in (run_graph(path, RUNTIMES[layout], sequences), concatenate(run_in_pytorch(encoder, sequences))):
        assert outputs.logits is not None
        for actual, rows in zip(outputs.logits, expected, strict=True):
            assert_close_to_scale(actual, np.atleast_2d(rows))


def test_a_negative_padding_token_is_none(tmp_path: Path) -> None:
    save_example(tmp_path, "Qwen2", "ForSequenceClassification")
    edit_json(tmp_path / "config.json", pad_token_id=-1)
    head = read_checkpoint(tmp_path).encoder.config.head
    assert head is not None
    assert head.pad_id is None


def test_a_decoders_head_of_tokens_without_a_bias_equals_transformers(tmp_path: Path) -> None:
    model = save_example(tmp_path, "Llama", "ForTokenClassification", token_classification_bias=False)
    assert_equal_logits(read_checkpoint(tmp_path).encoder, model, (1, 20))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in ("ViT", "DeiT", "Dinov2", "Dinov2WithRegisters", "CLIP", "Siglip", "AST")),
        ("Beit", {}),
        ("Beit", {"use_mean_pooling": False}),
        ("Data2VecVision", {}),
        ("Data2VecVision", {"use_mean_pooling": False}),
    ],
)
def test_a_classifier_of_images_or_sounds_equals_transformers(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    kind = "ForAudioClassification" if name == "AST" else "ForImageClassification"
    model = save_feature_model(tmp_path, name, kind, id2label=LABELS, label2id={}, **settings)
    encoder, values = read_checkpoint(tmp_path).encoder, draw_input(model)
    assert encoder.config.head is not None
    assert encoder.config.head.labels == tuple(LABELS.values())
    (outputs,) = run_in_pytorch(encoder, [input_rows(model, values, encoder.config.prefix_rows)])
    with torch.inference_mode():
        expected = model(torch.from_numpy(values)[None]).logits
    assert outputs.logits is not None
    assert_close(outputs.logits[0], expected.numpy())


@pytest.mark.parametrize(
    ("labels", "settings", "function"),
    [
        (1, {}, ScoreFunction.SIGMOID),
        (3, {}, ScoreFunction.SOFTMAX),
        (1, {"problem_type": "regression"}, ScoreFunction.IDENTITY),
        (1, {"problem_type": "single_label_classification"}, ScoreFunction.SIGMOID),
        (3, {"problem_type": "multi_label_classification"}, ScoreFunction.SIGMOID),
        (3, {"problem_type": "single_label_classification"}, ScoreFunction.SOFTMAX),
        (
            1,
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            ScoreFunction.IDENTITY,
        ),
        (
            3,
            {
                "sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid",
                "problem_type": "regression",
            },
            ScoreFunction.SIGMOID,
        ),
    ],
)
def test_the_score_function_is_that_of_the_checkpoint(
    labels: int, settings: dict[str, Any], function: ScoreFunction, tmp_path: Path
) -> None:
    save_family(tmp_path, "Bert", "ForSequenceClassification", num_labels=labels)
    edit_json(tmp_path / "config.json", **settings)
    head = read_checkpoint(tmp_path).encoder.config.head
    assert head is not None
    assert (len(head.labels), head.function) == (labels, function)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("Bert", "ForNextSentencePrediction"), ("Bert", "ForMultipleChoice")],
)
def test_the_refusal_of_a_head_has_the_python_that_saves_the_encoder(name: str, kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "it's"
    model = save_example(folder, name, kind, pad_token_id=0)
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(folder)
    assert f"{name}{kind}" in str(error.value)
    python = re.search(r"\((from transformers .*\))\), or", str(error.value))
    assert python is not None
    exec(python[1], {})
    assert_equals_transformers(read_checkpoint(Path(f"{folder}-encoder")).encoder, model.base_model, (1, 20))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Bert", "ForMaskedLM"),
        ("Qwen3", "ForCausalLM"),
        ("T5", "ForConditionalGeneration"),
        ("ModernBert", "ForMaskedLM"),
    ],
)
def test_a_language_model_is_an_embedder_only_with_a_pooling(name: str, kind: str, tmp_path: Path) -> None:
    save_example(tmp_path, name, kind)
    assert_checkpoint_refused(tmp_path, f"architectures ['{name}{kind}']", "head", "--pooling mean")
    for chosen in (Pooling.LAST, Pooling.NONE):
        assert read_checkpoint(tmp_path, chosen).encoder.config.pooling is chosen
    save_sentence_transformer(tmp_path)
    assert read_checkpoint(tmp_path).encoder.config.pooling is Pooling.MEAN


def test_a_cross_encoder_without_a_head_is_not_an_embedder(tmp_path: Path) -> None:
    save_family(tmp_path, "Bert")
    write_modules_json(tmp_path, "base.modules.transformer.Transformer")
    write_json(tmp_path / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})
    assert_checkpoint_refused(tmp_path, "architectures ['BertModel']", "CrossEncoder", "head")


def test_a_checkpoint_without_labels_has_the_two_labels_of_transformers(tmp_path: Path) -> None:
    save_family(tmp_path, "Bert", "ForSequenceClassification")
    assert "id2label" not in json.loads((tmp_path / "config.json").read_text())
    head = read_checkpoint(tmp_path).encoder.config.head
    assert head is not None
    assert head.labels == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"id2label": {"0": "no", "2": "yes"}}, ["id2label", "from 0"]),
        ({"id2label": {"0": ""}}, ["id2label"]),
        ({"id2label": {"0": 7}}, ["id2label", "strings"]),
        ({"problem_type": "ranking"}, ["problem_type 'ranking'"]),
        ({"sentence_transformers": {"activation_fn": "my.Own"}}, ["activation_fn 'my.Own'"]),
        ({"architectures": ["BertForSequenceClassification", "BertModel"]}, ["architectures"]),
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, ["classifier.weight", "[2, 32]", "[3, 32]"]),
    ],
)
def test_an_unsupported_setting_of_a_head_is_named(changes: dict[str, Any], facts: list[str], tmp_path: Path) -> None:
    save_family(tmp_path, "Bert", "ForSequenceClassification")
    edit_json(tmp_path / "config.json", **changes)
    assert_checkpoint_refused(tmp_path, *facts)


@pytest.mark.parametrize(("names", "token_types"), [(None, 2), (["input_ids", "attention_mask"], 0)])
def test_a_tokenizer_that_gives_no_token_types_leaves_one_type(
    names: list[str] | None, token_types: int, tmp_path: Path
) -> None:
    save_family(tmp_path, "Bert", "ForSequenceClassification", vocab_size=100)
    save_tokenizer(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", {"model_input_names": names} if names else {})
    given = transformers.AutoTokenizer.from_pretrained(tmp_path)("the bread", "the rain")
    loaded = read_checkpoint(tmp_path)
    assert ("token_type_ids" in given) == (token_types > 0)
    assert loaded.encoder.config.token_types == token_types
    assert loaded.text is not None
    assert loaded.text.pairs


@pytest.mark.parametrize(
    ("name", "tokenizer_class", "build"),
    [
        ("Bert", "BertTokenizer", word_piece),
        ("Electra", "ElectraTokenizer", word_piece),
        ("DebertaV2", "DebertaV2Tokenizer", lambda: unigram(special_tokens=BERT_TOKENS)),
        # These models have two token types, but their tokenizers give a model no types.
        ("Bert", "DistilBertTokenizer", word_piece),
        ("Albert", "AlbertTokenizer", lambda: unigram(special_tokens=ALBERT_TOKENS)),
    ],
)
def test_the_logits_of_a_pair_of_texts_equal_transformers_with_its_tokenizer(
    name: str, tokenizer_class: str, build: Callable[[], Tokenizer], tmp_path: Path
) -> None:
    model = save_example(tmp_path, name, "ForSequenceClassification", vocab_size=400, type_vocab_size=2)
    build().save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": tokenizer_class})
    pair = ("the bread", "the rain")
    given = transformers.AutoTokenizer.from_pretrained(tmp_path)(*pair, return_tensors="pt")
    with torch.inference_mode():
        expected = model(**given).logits
    loaded = read_checkpoint(tmp_path)
    assert loaded.text is not None
    encoding = Tokenizer.from_str(loaded.text.tokenizer).encode(*pair)
    sequence = np.array([encoding.ids, encoding.type_ids]).T
    (outputs,) = run_in_pytorch(loaded.encoder, [sequence if loaded.encoder.config.token_types else sequence[:, 0]])
    assert outputs.logits is not None
    assert_close(outputs.logits[0], expected.numpy())


IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"


@pytest.mark.parametrize(
    ("nested", "older"),
    [({"activation_fn": None}, IDENTITY), ({"activation_fn": IDENTITY}, SIGMOID), ({"version": "4.0"}, IDENTITY)],
)
def test_the_older_field_of_a_function_counts_as_in_sentence_transformers(
    nested: dict[str, Any], older: str, tmp_path: Path
) -> None:
    from sentence_transformers import CrossEncoder

    save_family(tmp_path, "Bert", "ForSequenceClassification", num_labels=1, vocab_size=100)
    save_tokenizer(tmp_path)
    edit_json(tmp_path / "config.json", sentence_transformers=nested, sbert_ce_default_activation_function=older)
    head = read_checkpoint(tmp_path).encoder.config.head
    assert head is not None
    assert head.function == type(CrossEncoder(str(tmp_path), device="cpu").activation_fn).__name__.lower()


def test_a_cross_encoder_that_sentence_transformers_saved_keeps_its_function(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    (tmp_path / "plain").mkdir()
    save_family(tmp_path / "plain", "Bert", "ForSequenceClassification", num_labels=1, vocab_size=100)
    save_tokenizer(tmp_path / "plain")
    model = CrossEncoder(str(tmp_path / "plain"), device="cpu", activation_fn=torch.nn.Identity())
    model.save_pretrained(str(tmp_path / "saved"))
    loaded = read_checkpoint(tmp_path / "saved")
    assert loaded.encoder.config.head is not None
    assert loaded.encoder.config.head.function is ScoreFunction.IDENTITY
    assert loaded.text is not None
