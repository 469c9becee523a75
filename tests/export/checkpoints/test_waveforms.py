"""Models of the samples of a sound: heads, weights of other releases, settings, and what a server answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from headwaiter_client import Client, FakeEncoder, sound_rows
from headwaiter_export.checkpoints.json_files import CheckpointJson
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Activation, Pooling
from headwaiter_export.config.head import ScoreFunction
from headwaiter_export.config.waveform import WaveformConfig
from headwaiter_export.encoder.reference import run_in_pytorch
from headwaiter_export.graphs.packed_cpu import PackedCpu
from tests.support.checkpoints import write_json, write_modules_json
from tests.support.e2e.exported import export_checkpoint
from tests.support.e2e.in_process_server import connect, serving
from tests.support.export.feature_checkpoints import (
    draw_input,
    expected_hidden,
    exported_hidden,
    input_rows,
    save_feature_model,
)
from tests.support.export.helpers import (
    assert_checkpoint_refused,
    assert_close_to_scale,
    changed_tensors,
    drop_fields,
    edit_json,
    run_graph,
    write_graphs,
)
from tests.support.oracle import Array
from tests.support.tiers import exhaustive

CHARACTERS = ("<pad>", "|", "E", "T", "A")


def labels_of(folder: Path) -> tuple[str, ...]:
    head = read_checkpoint(folder).encoder.config.head
    assert head is not None
    return head.labels


def expected_logits(model: Any, values: Array) -> Array:
    with torch.inference_mode():
        logits: Array = model(torch.from_numpy(values)[None]).logits[0].numpy()
    return logits


@pytest.mark.parametrize("name", ["Wav2Vec2", "Hubert", "WavLM"])
@pytest.mark.parametrize(
    ("kind", "labels"), [("ForSequenceClassification", ("calm", "angry", "sad")), ("ForCTC", CHARACTERS)]
)
def test_a_head_equals_transformers(name: str, kind: str, labels: tuple[str, ...], tmp_path: Path) -> None:
    by_number = dict(enumerate(labels))
    settings = {"id2label": by_number} if kind == "ForSequenceClassification" else {"vocab_size": len(labels)}
    model = save_feature_model(tmp_path, name, kind, **settings)
    if kind == "ForCTC":
        write_json(tmp_path / "vocab.json", {label: number for number, label in by_number.items()})
    values = draw_input(model, seed=3)
    encoder = read_checkpoint(tmp_path).encoder
    (outputs,) = run_in_pytorch(encoder, [input_rows(model, values, 0)])
    expected = expected_logits(model, values)
    assert outputs.logits is not None
    assert_close_to_scale(outputs.logits[0].reshape(expected.shape), expected)
    head = encoder.config.head
    assert head is not None
    assert (head.labels, head.function, head.per_token) == (labels, ScoreFunction.SOFTMAX, kind == "ForCTC")


def test_weights_with_the_old_names_of_the_weight_norm_are_the_same(tmp_path: Path) -> None:
    model = save_feature_model(tmp_path, "Wav2Vec2")
    with changed_tensors(tmp_path) as tensors:
        for new, old in (("original0", "weight_g"), ("original1", "weight_v")):
            name = "encoder.pos_conv_embed.conv"
            tensors[f"{name}.{old}"] = tensors.pop(f"{name}.parametrizations.weight.{new}")
    values = draw_input(model, seed=1)
    assert_close_to_scale(exported_hidden(tmp_path, model, values), expected_hidden(model, values))


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("Wav2Vec2", "conv_dim", [8, 12]),
        ("Wav2Vec2", "conv_dim", [8, 12, 0]),
        ("Wav2Vec2", "conv_dim", []),
        ("Wav2Vec2", "conv_kernel", "10"),
        # The windows would leave out samples that the norm of channels needs.
        ("Wav2Vec2", "conv_kernel", [1, 1, 1]),
        ("Wav2Vec2", "conv_stride", [2**20, 2**20, 2**20]),
        ("Wav2Vec2", "feat_proj_layer_norm", False),
        ("Wav2Vec2", "num_feat_extract_layers", 4),
        ("Wav2Vec2", "feat_extract_norm", "batch"),
        ("Wav2Vec2", "num_conv_pos_embedding_groups", 3),
        ("Wav2Vec2", "add_adapter", True),
        ("Wav2Vec2", "use_weighted_layer_sum", True),
        ("WavLM", "num_buckets", 3),
        ("WavLM", "max_bucket_distance", 5),
    ],
)
def test_a_setting_that_the_encoder_lacks_is_refused_by_name(name: str, field: str, value: Any, tmp_path: Path) -> None:
    save_feature_model(tmp_path, name)
    edit_json(tmp_path / "config.json", **{field: value})
    assert_checkpoint_refused(tmp_path, field)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (16_000, True)),
        ({"preprocessor_config.json": {"sampling_rate": 8000, "do_normalize": False}}, (8000, False)),
        ({"processor_config.json": {"feature_extractor": {"do_normalize": None}}}, (16_000, False)),
        ({"processor_config.json": {"audio_processor": {"sampling_rate": 8000}}}, (8000, True)),
        (
            {
                "preprocessor_config.json": {"do_normalize": True},
                "processor_config.json": {"feature_extractor": {"do_normalize": False, "sampling_rate": 8000}},
            },
            (8000, False),
        ),
    ],
)
def test_the_sounds_of_a_model_are_those_of_its_feature_extractor(
    files: dict[str, Any], expected: tuple[int, bool], tmp_path: Path
) -> None:
    save_feature_model(tmp_path, "Wav2Vec2")
    for name, content in files.items():
        write_json(tmp_path / name, content)
    loaded = read_checkpoint(tmp_path)
    assert (loaded.encoder.config.pooling, loaded.encoder.config.max_tokens) == (Pooling.MEAN, 1500)
    sound = loaded.sound
    assert sound is not None
    assert (sound.sampling_rate_hz, sound.normalized, sound.hop) == (*expected, 20)


@pytest.mark.parametrize(
    ("field", "value"),
    [("feature_extractor_type", "WhisperFeatureExtractor"), ("feature_size", 2), ("sampling_rate", 0)],
)
def test_a_feature_extractor_that_the_client_lacks_is_refused_by_name(field: str, value: Any, tmp_path: Path) -> None:
    save_feature_model(tmp_path, "Wav2Vec2")
    write_json(tmp_path / "preprocessor_config.json", {field: value})
    assert_checkpoint_refused(tmp_path, field)


def test_the_rows_of_a_sound_are_those_of_transformers(tmp_path: Path) -> None:
    """The client scales and cuts the samples as the feature extractor and the convolutions of transformers do."""
    model = save_feature_model(tmp_path, "Wav2Vec2", feat_extract_norm="layer")
    extractor = transformers.Wav2Vec2FeatureExtractor()
    extractor.save_pretrained(tmp_path)
    loaded = read_checkpoint(tmp_path)
    samples = np.random.default_rng(0).normal(3, 7, 999).astype(np.float32)
    fake = FakeEncoder(vocabulary_size=0, feature_width=loaded.encoder.config.feature_width, sound=loaded.sound)
    rows = sound_rows(samples, Client(transport=fake).model())
    values = extractor(samples, sampling_rate=16_000, return_tensors="np")["input_values"][0]
    assert_close_to_scale(run_in_pytorch(loaded.encoder, [rows])[0].hidden, expected_hidden(model, values))


def test_the_convolutions_have_the_default_sizes_of_transformers(tmp_path: Path) -> None:
    save_feature_model(tmp_path, "Wav2Vec2")
    drop_fields(tmp_path / "config.json", "conv_dim")
    assert_checkpoint_refused(tmp_path, "conv_kernel", "conv_dim")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
def test_a_long_sound_whose_mean_is_far_from_0_equals_transformers_in_float64(tmp_path: Path) -> None:
    model, rows = save_feature_model(tmp_path, "Wav2Vec2"), 300
    values = np.ones(30 + 20 * (rows - 1), np.float32)
    with torch.inference_mode():
        expected = model.double()(torch.from_numpy(values)[None].double()).last_hidden_state[0].numpy()
    encoder = read_checkpoint(tmp_path, Pooling.NONE).encoder
    path = write_graphs(encoder, tmp_path, PackedCpu)[PackedCpu]
    sound = input_rows(model, values, 0)
    hidden = run_graph(path, "cpu", [sound, sound[:7]]).hidden
    assert hidden is not None
    assert_close_to_scale(hidden[:rows], expected)


@pytest.mark.parametrize("kind", ["ForSequenceClassification", "ForCTC"])
def test_a_pooling_of_sentence_transformers_replaces_the_head(kind: str, tmp_path: Path) -> None:
    save_feature_model(tmp_path, "Hubert", kind)
    write_modules_json(tmp_path, "models.Transformer", "models.Pooling")
    write_json(
        tmp_path / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, "pooling_mode_max_tokens": True}
    )
    config = read_checkpoint(tmp_path).encoder.config
    assert (config.pooling, config.head) == (Pooling.MAX, None)


@pytest.mark.parametrize("name", ["Wav2Vec2", "Hubert", "WavLM"])
def test_an_encoder_of_sounds_that_sentence_transformers_saved_is_read(name: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule

    plain, saved = tmp_path / "plain", tmp_path / "saved"
    model = save_feature_model(plain, name)
    write_json(plain / "vocab.json", {"<pad>": 0, "<unk>": 1, "|": 2, "<s>": 3, "</s>": 4})
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(plain / "vocab.json"))
    transformers.Wav2Vec2Processor(transformers.Wav2Vec2FeatureExtractor(), tokenizer).save_pretrained(plain)
    transformer = Transformer(str(plain))
    SentenceTransformer(modules=[transformer, PoolingModule(32, "max")], device="cpu").save(str(saved))
    settings = CheckpointJson.read(saved / "sentence_bert_config.json")
    assert settings.values["modality_config"].keys() == {"audio", "audio+text"}
    config = read_checkpoint(saved).encoder.config
    assert (config.pooling, config.d_model) == (Pooling.MAX, model.config.hidden_size)
    rows = settings.values["modality_config"]["audio"]
    write_json(saved / "sentence_bert_config.json", {**settings.values, "modality_config": {"audio+text": rows}})
    assert_checkpoint_refused(saved, "sentence_bert_config.json", "modality_config")


def test_a_kernel_of_positions_of_length_0_is_refused_by_name(tmp_path: Path) -> None:
    save_feature_model(tmp_path, "Wav2Vec2")
    name = "encoder.pos_conv_embed.conv.parametrizations.weight.original1"
    with changed_tensors(tmp_path) as tensors:
        tensors[name][:, :, 2] = 0
    assert_checkpoint_refused(tmp_path, name)


def test_added_tokens_without_a_logit_are_left_out(tmp_path: Path) -> None:
    save_feature_model(tmp_path, "Wav2Vec2", "ForCTC", vocab_size=3)
    write_json(tmp_path / "vocab.json", {"A": 0, "B": 1})
    write_json(tmp_path / "added_tokens.json", {"<s>": 2, "</s>": 3})
    assert labels_of(tmp_path) == ("A", "B", "<s>")
    (tmp_path / "added_tokens.json").unlink()
    assert labels_of(tmp_path) == ("A", "B", "LABEL_2")
    write_json(tmp_path / "tokenizer_config.json", {"added_tokens_decoder": {"2": {"content": "[PAD]"}}})
    assert labels_of(tmp_path) == ("A", "B", "[PAD]")


def test_the_sizes_of_wav2vec2_base() -> None:
    waveform = WaveformConfig(
        widths=(512,) * 7,
        kernels=(10, 3, 3, 3, 3, 2, 2),
        strides=(5, 2, 2, 2, 2, 2, 2),
        bias=False,
        norms_channels=True,
        activation=Activation.GELU,
        final_norm=True,
        position_kernel=128,
        position_groups=16,
    )
    assert (waveform.window, waveform.hop, waveform.first_outputs, waveform.first_outputs_per_hop) == (400, 320, 79, 64)
    assert waveform.live_values == 4 * 79 * 512
    convolutions = 79 * 10 * 512 + (39 + 19 + 9 + 4) * 3 * 512**2 + (2 + 1) * 2 * 512**2
    assert waveform.products_per_row(768) == convolutions + 512 * 768 + 128 * 768 * 48


@pytest.mark.parametrize(
    ("vocabulary", "fact"),
    [
        ('{"A": 5}', "vocab.json"),
        ('{"A": "0"}', "vocab.json"),
        ('{"A": -1}', "vocab.json"),
        ('{"A": 0, "\\ud800": 1}', "label 1"),
    ],
)
def test_characters_that_cannot_be_labels_are_refused(vocabulary: str, fact: str, tmp_path: Path) -> None:
    save_feature_model(tmp_path, "Wav2Vec2", "ForCTC", vocab_size=5)
    (tmp_path / "vocab.json").write_text(vocabulary)
    assert_checkpoint_refused(tmp_path, fact)


@pytest.mark.usefixtures("starts_processes", "runs_graphs")
@pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("Wav2Vec2", "group"),
        *exhaustive(("Hubert", "layer"), ("WavLM", "layer")),
    ],
)
async def test_a_server_answers_sounds_of_different_lengths(name: str, norm: str, tmp_path: Path) -> None:
    """A sound beside others has the rows that transformers gives it alone, and the scores of its characters."""
    model = save_feature_model(
        tmp_path / "checkpoint", name, "ForCTC", vocab_size=5, feat_extract_norm=norm, conv_bias=True
    )
    export_checkpoint(tmp_path / "checkpoint", tmp_path / "bundle", "sounds")
    sounds = [draw_input(model, seed) for seed in (4, 0, 2)]
    async with serving(tmp_path / "bundle") as server, connect(server) as client:
        rows = [input_rows(model, sound, 0) for sound in sounds]
        hidden = (await client.encode_features(rows, pooled=False, hidden=True)).hidden
        scores = (await client.classify(rows)).token_scores
    assert hidden is not None
    assert scores is not None
    for sound, sound_hidden, sound_scores in zip(sounds, hidden, scores, strict=True):
        assert_close_to_scale(sound_hidden, expected_hidden(model.base_model, sound))
        expected = torch.from_numpy(expected_logits(model, sound)).softmax(-1).numpy()
        assert_close_to_scale(np.asarray(sound_scores), expected)
