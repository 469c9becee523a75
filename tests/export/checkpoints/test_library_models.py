"""A checkpoint of a type without a family is computed by transformers' own module, in graphs that equal it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from tokenizers import Tokenizer, processors

from headwaiter_client import patches
from headwaiter_export.checkpoints.families.model_types import FAMILIES
from headwaiter_export.checkpoints.library_experts import run_all_experts
from headwaiter_export.checkpoints.library_model import read_library_model
from headwaiter_export.cli import main
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_proto.encoder_pb2 import (
    ISOLATION_MIXED,
    ISOLATION_ONE_LENGTH,
    POOLING_CLS,
    POOLING_MEAN,
    POOLING_NONE,
    POOLING_OWN,
)
from headwaiter_proto.manifest_pb2 import LOWERING_PACKED_CPU, LOWERING_PADDED, Manifest
from headwaiter_proto.rules.images import patch_rows, prefix_rows, takes_images
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs
from headwaiter_server.runtime.isolation import batches_of
from headwaiter_server.runtime.packing import pack
from tests.export.conftest import Refused
from tests.support.checkpoints import VOCABULARY, randomize, save_tokenizer, write_json, write_modules_json
from tests.support.export.helpers import assert_close_to_scale, changed_tensors, save_dense
from tests.support.oracle import Array
from tests.support.tiers import exhaustive

pytestmark = pytest.mark.usefixtures("runs_graphs", "runs_transformers")

SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
MOBILE = {**SIZES, "embedding_size": 16, "intra_bottleneck_size": 16, "num_feedforward_networks": 2}
CONVOLUTION = {**SIZES, "embedding_size": 32}
# XLM-R's positions begin after the id of padding.
XMOD = {**SIZES, "languages": ["en_XX"], "default_language": "en_XX", "pad_token_id": 1}
SQUEEZE = {**SIZES, "embedding_size": 32, **dict.fromkeys(("q_groups", "k_groups", "v_groups"), 2)}
MIXTURE = {**SIZES, "num_hidden_layers": 1, "num_key_value_heads": 2, "num_local_experts": 5, "sliding_window": 16}
STACK = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}
IMAGES = {"image_size": 32, "patch_size": 8}
TEXTS = ["the bread is fresh", "rain", "a table for two please", "rain falls on the stone table", "fresh"]


def save(folder: Path, kind: str, fields: dict[str, Any], ending: str = "Model", **more: Any) -> Any:
    """Save a model of transformers with a tokenizer."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**fields, **more)
    model = getattr(transformers, f"{kind}{ending}")(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"})
    return model


def export(folder: Path, *flags: str) -> Manifest:
    """Export a checkpoint in float32 for CPUs, and return the manifest of the bundle."""
    graphs = ["--graphs", "packed-cpu", "padded", "--precision", "fp32"]
    assert main(["checkpoint", str(folder), "-o", str(folder / "bundle"), *flags, *graphs]) == 0
    return Bundle.open(folder / "bundle").manifest


def run(folder: Path, sequences: list[Array]) -> list[GraphOutputs]:
    """Run a graph in one batch, or in the batches that its manifest allows."""
    manifest = Bundle.open(folder / "bundle").manifest
    graph = EncoderGraph.open(folder / "bundle" / manifest.graphs[0].file, "cpu", threads=1)
    batches = batches_of(sequences, [*map(len, sequences)], manifest.padding.isolation)
    return [graph.run(pack(batch), hidden=True) for batch in batches]


def assert_equal_rows(folder: Path, sequences: list[Array], model: Any) -> None:
    """Compare hidden rows with those that a module of transformers gives each sequence alone."""
    with torch.inference_mode():
        expected = [model(torch.from_numpy(each)[None])[0][0].numpy() for each in sequences]
    rows = [each.hidden for each in run(folder, sequences) if each.hidden is not None]
    assert_close_to_scale(np.concatenate(rows), np.concatenate(expected), 1e-6)


@pytest.mark.parametrize(
    ("kind", "fields", "most", "lowering", "isolation"),
    [
        ("Xmod", XMOD, 62, LOWERING_PADDED, ISOLATION_MIXED),
        # The family does not know the activation.
        ("Bert", {**SIZES, "hidden_act": "mish"}, 64, LOWERING_PACKED_CPU, 0),
        # A mixture of experts.
        ("Mixtral", MIXTURE, 64, LOWERING_PACKED_CPU, 0),
        *exhaustive(
            ("MobileBert", MOBILE, 64, LOWERING_PADDED, ISOLATION_ONE_LENGTH),
            ("ConvBert", CONVOLUTION, 64, LOWERING_PADDED, ISOLATION_ONE_LENGTH),
            ("SqueezeBert", SQUEEZE, 64, LOWERING_PACKED_CPU, 0),
        ),
    ],
)
def test_a_type_without_a_family_gives_the_rows_of_transformers(
    kind: str, fields: dict[str, Any], most: int, lowering: int, isolation: int, tmp_path: Path
) -> None:
    model = save(tmp_path, kind, fields)
    manifest = export(tmp_path)
    assert (manifest.max_tokens, manifest.pooling) == (most, POOLING_MEAN)
    assert [graph.lowering for graph in manifest.graphs] == [lowering]
    assert (manifest.padding.isolation, manifest.reference_module) == (isolation, f"{kind}Model")
    rng = np.random.default_rng(0)
    assert_equal_rows(tmp_path, [rng.integers(2, len(VOCABULARY), n) for n in (5, 5, 1, 30, most, 2)], model)


def test_a_mixture_with_a_form_of_its_own_is_refused() -> None:
    model = transformers.MixtralModel(transformers.MixtralConfig(**MIXTURE)).eval()
    mixture: Any = model.get_submodule("layers.0.mlp.experts")
    assert run_all_experts(model) == 1
    mixture.has_gate, mixture.up_proj = False, mixture.gate_up_proj[:, :64]
    del mixture.forward
    with pytest.raises(ConfigError, match=r"layers\.0\.mlp\.experts"):
        run_all_experts(model)


def test_of_an_encoder_and_a_decoder_the_encoder_is_exported(tmp_path: Path) -> None:
    sizes = {f"{stack}_{name}": n for stack in ("encoder", "decoder") for name, n in STACK.items()}
    model = save(
        tmp_path, "MBart", {"vocab_size": len(VOCABULARY), "d_model": 32, "max_position_embeddings": 64, **sizes}
    )
    manifest = export(tmp_path)
    assert (manifest.max_tokens, manifest.pooling) == (64, POOLING_MEAN)
    assert_equal_rows(tmp_path, [np.arange(5, 5 + n) for n in (5, 1, 40)], model.get_encoder())


def test_a_class_without_a_head_may_have_any_name(tmp_path: Path) -> None:
    model = save(tmp_path, "BertGeneration", SIZES, "Encoder")
    assert export(tmp_path).reference_module == "BertGenerationEncoder"
    assert_equal_rows(tmp_path, [np.arange(5, 5 + n) for n in (5, 1, 40)], model)


def test_an_encoder_of_passages_gives_the_vectors_of_transformers(tmp_path: Path) -> None:
    model = save(tmp_path, "DPR", SIZES, "ContextEncoder")
    assert export(tmp_path).without_rows
    sequences: list[Array] = [np.arange(5, 5 + n) for n in (5, 1, 40)]
    with torch.inference_mode():
        expected = [model(torch.from_numpy(each)[None]).pooler_output.numpy() for each in sequences]
    vectors = [each.pooled for each in run(tmp_path, sequences) if each.pooled is not None]
    assert_close_to_scale(np.concatenate(vectors), np.concatenate(expected), 1e-6)


@pytest.mark.parametrize(
    ("kind", "fields", "pooling", "zeros"),
    [
        ("ViTMSN", {**SIZES, **IMAGES}, POOLING_CLS, 1),
        ("ChineseCLIP", {"text_config": SIZES, "vision_config": {**SIZES, **IMAGES}}, POOLING_OWN, 0),
        *exhaustive(
            ("IJepa", {**SIZES, **IMAGES}, POOLING_MEAN, 0),
            ("ConvNext", {"hidden_sizes": [8, 16, 16, 24], "depths": [1] * 4}, POOLING_OWN, 0),
        ),
    ],
)
def test_a_model_of_images_gives_the_results_of_transformers(
    kind: str, fields: dict[str, Any], pooling: int, zeros: int, tmp_path: Path
) -> None:
    model = save(tmp_path, kind, fields)
    write_json(tmp_path / "preprocessor_config.json", {"image_processor_type": "ViTImageProcessor", "size": 32})
    manifest = export(tmp_path)
    image, rng = manifest.image, np.random.default_rng(0)
    assert (image.height, image.width, takes_images(manifest), manifest.fixed_length) == (32, 32, True, True)
    assert (manifest.pooling, prefix_rows(manifest)) == (pooling, zeros)
    pixels = rng.standard_normal((3, 3, 32, 32), np.float32)
    size = image.patch_size
    outputs = run(tmp_path, [patch_rows(each, size, zeros, (size, size), np.float32) for each in pixels])
    with torch.inference_mode():
        inputs = {"pixel_values": torch.from_numpy(pixels)}
        if kind == "ChineseCLIP":
            expected = model.get_image_features(**inputs).pooler_output
        else:
            rows = model(**inputs).last_hidden_state
            expected = rows.mean((2, 3)) if rows.ndim == 4 else rows.flatten(0, 1)
    results = [each.hidden if pooling != POOLING_OWN else each.pooled for each in outputs]
    assert_close_to_scale(np.concatenate([each for each in results if each is not None]), expected.numpy(), 1e-6)


@pytest.mark.parametrize("kind", ["VideoMAE", *exhaustive("Vivit", "Timesformer")])
def test_a_model_of_videos_gives_the_mean_of_the_rows_of_transformers(kind: str, tmp_path: Path) -> None:
    fields = {"num_frames": 4, "tubelet_size": [2, 8, 8] if kind == "Vivit" else 2}
    model = save(tmp_path, kind, {**SIZES, **IMAGES, **fields})
    write_json(tmp_path / "preprocessor_config.json", {"image_processor_type": "ViTImageProcessor", "size": 32})
    manifest = export(tmp_path)
    assert (manifest.image.channels, takes_images(manifest), manifest.without_rows) == (12, False, True)
    videos = np.random.default_rng(0).standard_normal((2, 4, 3, 32, 32), np.float32)
    rows = [patches(video.reshape(-1, 32, 32), 8, prefix_rows=0) for video in videos]
    with torch.inference_mode():
        expected = model(pixel_values=torch.from_numpy(videos)).last_hidden_state.mean(1)
    vectors = [each.pooled for each in run(tmp_path, rows) if each.pooled is not None]
    assert_close_to_scale(np.concatenate(vectors), expected.numpy(), 1e-6)


def test_deberta_without_its_family_equals_the_bundle_of_the_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disentangled: dict[str, Any] = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
    save(tmp_path, "DebertaV2", SIZES, **disentangled, position_biased_input=False)
    sequences: list[Array] = [np.arange(2, 2 + n) for n in (40, 3, 17, 1)]
    export(tmp_path, "--pooling", "cls")
    (family,) = run(tmp_path, sequences)
    (tmp_path / "bundle").rename(tmp_path / "family")
    known = {name: each for name, each in FAMILIES.items() if name != "deberta-v2"}
    monkeypatch.setattr("headwaiter_export.checkpoints.chosen_family.FAMILIES", known)
    manifest = export(tmp_path, "--pooling", "cls")
    assert (manifest.padding.isolation, manifest.pooling) == (ISOLATION_MIXED, POOLING_CLS)
    (own,) = run(tmp_path, sequences)
    assert own.pooled is not None
    assert family.pooled is not None
    assert_close_to_scale(own.pooled, family.pooled, 1e-5)


def encoded(folder: Path, texts: list[str] | list[tuple[str, str]]) -> list[Array]:
    """Return the token ids of texts in a bundle."""
    tokenizer = Tokenizer.from_file(str(folder / "bundle" / "tokenizer.json"))
    encodings = tokenizer.encode_batch(texts)
    if Bundle.open(folder / "bundle").manifest.token_types:
        return [np.stack([each.ids, each.type_ids], axis=1) for each in encodings]
    return [np.array(each.ids) for each in encodings]


def test_tokenizer_pooling_and_the_modules_after_it_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    save(tmp_path, "MobileBert", MOBILE)
    write_modules_json(tmp_path, "models.Transformer", "models.Pooling", "models.Dense", "models.Normalize")
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": 32, "do_lower_case": False})
    write_json(tmp_path / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, "pooling_mode_cls_token": True})
    save_dense(tmp_path / "2_Dense", 8, bias=True)
    (tmp_path / "3_Normalize").mkdir()
    manifest = export(tmp_path)
    assert (manifest.pooling, manifest.normalized, manifest.width, manifest.hidden_width) == (POOLING_CLS, True, 8, 32)
    assert manifest.max_text_tokens == 32
    outputs = run(tmp_path, encoded(tmp_path, TEXTS))
    vectors = np.concatenate([each.pooled for each in outputs if each.pooled is not None])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    # Each text alone: padding changes what MobileBERT gives.
    expected = [SentenceTransformer(str(tmp_path)).encode(each) for each in TEXTS]
    assert_close_to_scale(vectors, np.stack(expected), 1e-5)


def test_a_head_gives_the_logits_of_transformers_for_pairs_with_their_types(tmp_path: Path) -> None:
    save(tmp_path, "MobileBert", MOBILE, "ForSequenceClassification", num_labels=1)
    pairs = {"single": "[CLS] $A [SEP]", "pair": "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"}
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokens = [(token, VOCABULARY.index(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(**pairs, special_tokens=tokens)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    names = ["input_ids", "token_type_ids", "attention_mask"]
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_input_names": names}
    write_json(tmp_path / "tokenizer_config.json", settings)
    manifest = export(tmp_path)
    assert (manifest.pooling, manifest.token_types, manifest.takes_pairs) == (POOLING_NONE, 2, True)
    assert (manifest.without_rows, list(manifest.head.labels)) == (True, ["LABEL_0"])
    asked = [("fresh bread", each) for each in TEXTS]
    outputs = run(tmp_path, encoded(tmp_path, asked))
    logits = np.concatenate([rows for each in outputs for rows in each.logits or ()])
    scorer = CrossEncoder(str(tmp_path), activation_fn=torch.nn.Identity())
    expected = np.concatenate([scorer.predict([each]) for each in asked])
    assert_close_to_scale(logits[:, 0], expected, 1e-5)


@pytest.mark.exhaustive
def test_a_head_of_tokens_gives_the_logits_of_transformers(tmp_path: Path) -> None:
    labels = {"id2label": {0: "O", 1: "PLACE", 2: "NAME"}, "label2id": {"O": 0, "PLACE": 1, "NAME": 2}}
    model = save(tmp_path, "ConvBert", CONVOLUTION, "ForTokenClassification", **labels)
    manifest = export(tmp_path)
    assert (manifest.head.per_token, list(manifest.head.labels)) == (True, ["O", "PLACE", "NAME"])
    sequences: list[Array] = [np.arange(2, 2 + n) for n in (7, 7, 20)]
    logits = np.concatenate([rows for each in run(tmp_path, sequences) for rows in each.logits or ()])
    with torch.inference_mode():
        expected = [model(torch.from_numpy(each)[None]).logits[0].numpy() for each in sequences]
    assert_close_to_scale(logits, np.concatenate(expected), 1e-6)


@pytest.mark.parametrize(
    ("missing", "flags", "facts"),
    [
        ("embeddings.LayerNorm.weight", (), ["embeddings.LayerNorm.weight", "random"]),
        ("", ("--pooling", "splade"), ["model_type", "mobilebert"]),
        ("", ("--graphs", "portable"), ["padded.fp32", "--graphs"]),
        ("", ("--max-tokens", "65"), ["65", "--max-tokens"]),
        ("", ("--max-tokens", "-1"), ["max_tokens is -1"]),
        ("", ("--pooling", "none", "--normalize"), ["normalize", "none"]),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(
    missing: str, flags: tuple[str, ...], facts: list[str], tmp_path: Path, refused: Refused
) -> None:
    save(tmp_path, "MobileBert", MOBILE)
    with changed_tensors(tmp_path) as tensors:
        tensors.pop(missing, None)
    refused(["checkpoint", tmp_path, *flags], *facts)


def test_a_long_limit_is_cut_unless_the_caller_chooses_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, "MobileBert", MOBILE)
    monkeypatch.setattr("headwaiter_export.checkpoints.library_model._MOST_TOKENS", 32)
    model = read_library_model(tmp_path, RuntimeError())
    assert model.choices["max_tokens"] == 32
    assert any("--max-tokens" in line for line in model.assumptions)
    assert read_library_model(tmp_path, RuntimeError(), max_tokens=48).choices["max_tokens"] == 48


def test_max_tokens_of_a_family_are_those_of_its_configuration(tmp_path: Path, refused: Refused) -> None:
    save(tmp_path, "Bert", SIZES)
    refused(["checkpoint", tmp_path, "--max-tokens", "32"], "--max-sequence-tokens")


def test_a_configuration_cannot_choose_a_kernel_on_a_hub(tmp_path: Path) -> None:
    save(tmp_path, "MobileBert", MOBILE)
    config = json.loads((tmp_path / "config.json").read_text())
    write_json(tmp_path / "config.json", {**config, "attn_implementation": "kernels-community/flash-attn2"})
    module: Any = read_library_model(tmp_path, RuntimeError()).module
    assert module.config._attn_implementation in ("sdpa", "eager")


def test_xlnet_is_refused_because_its_tokenizer_gives_other_types(tmp_path: Path, refused: Refused) -> None:
    # XLNet limits no positions, and says so by max_position_embeddings -1.
    sizes = {"vocab_size": len(VOCABULARY), "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}
    save(tmp_path, "XLNet", sizes)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokens = [(token, VOCABULARY.index(token)) for token in ("[CLS]", "[SEP]")]
    single, pair = "$A:0 [SEP]:0 [CLS]:2", "$A:0 [SEP]:0 $B:1 [SEP]:1 [CLS]:2"
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=tokens)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    refused(["checkpoint", tmp_path], "token types")


@pytest.mark.parametrize("flags", [("--pooling", "mean"), ("--normalize",)])
def test_a_head_takes_no_pooling(flags: tuple[str, ...], tmp_path: Path, refused: Refused) -> None:
    config = {"model_type": "mobilebert", "architectures": ["MobileBertForSequenceClassification"]}
    write_json(tmp_path / "config.json", config)
    refused(["checkpoint", tmp_path, *flags], "--pooling and --normalize")


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        ({"model_type": "unheard_of"}, ["model_type", "unheard_of", "bert"]),
        ({"model_type": "mobilebert", "auto_map": {"AutoModel": "code.Model"}}, ["auto_map"]),
        ({"model_type": "mobilebert", "architectures": ["MobileBertForQuestionAnswering"]}, ["architectures"]),
        ({"model_type": "mobilebert", "architectures": ["MobileBertForMaskedLM"]}, ["--pooling"]),
    ],
)
def test_a_configuration_that_the_export_cannot_follow_is_refused(
    fields: dict[str, Any], facts: list[str], tmp_path: Path, refused: Refused
) -> None:
    write_json(tmp_path / "config.json", fields)
    refused(["checkpoint", tmp_path], *facts)
