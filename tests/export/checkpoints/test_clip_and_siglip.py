"""CLIP and SigLIP: each part of a checkpoint of images and texts gives the vectors and rows of `transformers`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from headwaiter_client import InvalidInput, SequenceTooLong
from headwaiter_export.bundle.sentences import tokenize
from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.reader import LoadedModel, read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.head import ScoreFunction
from headwaiter_export.encoder.reference import concatenate, run_in_pytorch
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import Failures
from headwaiter_server.inputs.tokenizer import BundleTokenizer, TokenizeOptions
from headwaiter_server.requests.threads import finish
from tests.support.checkpoints import randomize, save_sentence_transformer, write_json, write_modules_json
from tests.support.e2e.exported import export_checkpoint
from tests.support.e2e.in_process_server import connect, serving
from tests.support.export.family_checkpoints import save_family
from tests.support.export.feature_checkpoints import (
    FEED_FORWARD,
    IMAGES,
    LAYERS,
    draw_input,
    expected_hidden,
    exported_hidden,
    input_rows,
    save_feature_model,
)
from tests.support.export.helpers import assert_checkpoint_refused, assert_close, assert_close_to_scale, edit_json
from tests.support.export.tokenizer_folders import clip, gemma
from tests.support.oracle import Array

VISION = {**LAYERS, **FEED_FORWARD, **IMAGES}
TEXT = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 20,
    "vocab_size": 30,
    "max_position_embeddings": 8,
}


def save_both_parts(folder: Path, name: str, **text: Any) -> transformers.PreTrainedModel:
    """Save a model of images and texts, and return its image part."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        vision_config=VISION, text_config={**TEXT, "bos_token_id": 0, "eos_token_id": 1, **text}
    )
    config.vision_config._attn_implementation = "eager"
    model = getattr(transformers, f"{name}Model")(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    part: transformers.PreTrainedModel = model.vision_model
    return part


def assert_equal_hidden(folder: Path, model: transformers.PreTrainedModel) -> None:
    image = draw_input(model)
    assert_close_to_scale(exported_hidden(folder, model, image), expected_hidden(model, image))


@pytest.mark.parametrize("name", ["CLIP", "Siglip"])
def test_the_image_part_of_a_model_of_images_and_texts_is_exported(name: str, tmp_path: Path) -> None:
    assert_equal_hidden(tmp_path, save_both_parts(tmp_path, name))


def test_a_projection_of_clip_leaves_the_hidden_rows_as_they_are(tmp_path: Path) -> None:
    model = save_feature_model(tmp_path, "CLIPVision", "ModelWithProjection", projection_dim=8)
    assert_equal_hidden(tmp_path, model.vision_model)


@pytest.mark.parametrize(
    "changes",
    [
        # transformers writes short configurations of parts; the missing fields have the values of the class.
        {"vision_config": {name: VISION[name] for name in VISION}},
        {"vision_config_dict": VISION, "vision_config": {**VISION, "num_attention_heads": 2, "hidden_act": "relu"}},
    ],
)
def test_the_configuration_of_the_image_part_is_read_as_transformers_reads_it(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    save_both_parts(tmp_path, "CLIP")
    edit_json(tmp_path / "config.json", **changes)
    model = transformers.CLIPModel.from_pretrained(tmp_path).vision_model.eval()
    assert model.config.hidden_act == "quick_gelu"
    assert_equal_hidden(tmp_path, model)


def test_a_configuration_of_the_image_part_that_is_no_object_is_refused(tmp_path: Path) -> None:
    save_both_parts(tmp_path, "Siglip")
    edit_json(tmp_path / "config.json", vision_config="base")
    assert_checkpoint_refused(tmp_path, "vision_config 'base'", "object")


def exported_pooled(folder: Path, model: transformers.PreTrainedModel, values: Array) -> Array:
    encoder = read_checkpoint(folder).encoder
    (outputs,) = run_in_pytorch(encoder, [input_rows(model, values, encoder.config.prefix_rows)])
    assert outputs.pooled is not None
    return np.asarray(outputs.pooled[0])


@pytest.mark.parametrize("projection_dim", [8, 48])
def test_the_pooled_vector_of_clip_is_that_of_transformers(projection_dim: int, tmp_path: Path) -> None:
    projected = save_feature_model(tmp_path / "1", "CLIPVision", "ModelWithProjection", projection_dim=projection_dim)
    plain = save_feature_model(tmp_path / "2", "CLIPVision", projection_dim=projection_dim)
    image = draw_input(plain)
    batch = torch.from_numpy(image)[None]
    with torch.inference_mode():
        embeddings, pooled = projected(batch).image_embeds[0].numpy(), plain(batch).pooler_output[0].numpy()
    assert_close_to_scale(exported_pooled(tmp_path / "1", plain, image), embeddings)
    assert_close_to_scale(exported_pooled(tmp_path / "2", plain, image), pooled)


@pytest.mark.parametrize(("name", "kind"), [("CLIPVision", "ModelWithProjection"), ("SiglipVision", "Model")])
def test_another_pooling_of_images_leaves_out_the_norm_and_the_projection(name: str, kind: str, tmp_path: Path) -> None:
    save_feature_model(tmp_path, name, kind, **({"projection_dim": 8} if name == "CLIPVision" else {}))
    config = read_checkpoint(tmp_path, Pooling.MEAN).encoder.config
    assert (config.pooling, config.pooled_width) == (Pooling.MEAN, 32)


@pytest.mark.parametrize(
    ("name", "kind", "field", "value"),
    [
        ("CLIPVision", "ModelWithProjection", "layer_norm_eps", 2),
        ("CLIPVision", "ModelWithProjection", "projection_dim", 0.5),
        *(("SiglipVision", "Model", "vision_use_head", value) for value in (None, 0, "no")),
    ],
)
def test_a_wrong_field_of_the_vector_is_refused_by_name(
    name: str, kind: str, field: str, value: Any, tmp_path: Path
) -> None:
    save_feature_model(tmp_path, name, kind)
    edit_json(tmp_path / "config.json", **{field: value})
    assert_checkpoint_refused(tmp_path, "config.json", f"{field} {value!r}")


def test_the_pooled_vector_of_siglip_is_that_of_transformers(tmp_path: Path) -> None:
    part = save_both_parts(tmp_path / "both", "Siglip")
    alone = save_feature_model(tmp_path / "alone", "SiglipVision")
    image = draw_input(part)
    with torch.inference_mode():
        for folder, model in (("both", part), ("alone", alone)):
            expected = model(torch.from_numpy(image)[None]).pooler_output[0].numpy()
            assert_close_to_scale(exported_pooled(tmp_path / folder, model, image), expected)


def test_siglip_without_its_pooling_needs_another_one(tmp_path: Path) -> None:
    model = save_feature_model(tmp_path, "SiglipVision", vision_use_head=False)
    assert_checkpoint_refused(tmp_path, "vision_use_head False", "another pooling")
    assert_equal_hidden(tmp_path, model)


def test_a_model_without_attention_pooling_is_not_exported_with_it(tmp_path: Path) -> None:
    save_feature_model(tmp_path, "CLIPVision")
    with pytest.raises(CheckpointError, match="attention pooling"):
        read_checkpoint(tmp_path, Pooling.ATTENTION)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("processing_kwargs", {"image": {"do_normalize": False}}),
        ("processor_kwargs", {"do_normalize": False}),
        ("config_kwargs", {"num_hidden_layers": 1}),
        ("modality_config", {"image": {"method": "forward", "method_output_name": "pooler_output"}}),
        ("modality_config", {"audio": {"method": "forward", "method_output_name": "last_hidden_state"}}),
        ("transformer_task", "fill-mask"),
        ("new_field", 1),
    ],
)
def test_settings_of_sentence_transformers_are_read_for_images_too(field: str, value: Any, tmp_path: Path) -> None:
    save_feature_model(tmp_path, "SiglipVision")
    save_sentence_transformer(tmp_path, modules=("Transformer", "Pooling"))
    settings = {
        "transformer_task": "feature-extraction",
        "modality_config": {"image": {"method": "forward", "method_output_name": "last_hidden_state"}},
        "module_output_name": "token_embeddings",
    }
    write_json(tmp_path / "sentence_bert_config.json", settings)
    assert read_checkpoint(tmp_path).encoder.config.pooling is Pooling.MEAN
    write_json(tmp_path / "sentence_bert_config.json", {**settings, field: value})
    assert_checkpoint_refused(tmp_path, "sentence_bert_config.json", field)


@pytest.mark.parametrize("part", [{}, {"architectures": None}])
def test_the_head_of_a_model_of_images_and_texts_is_named(part: dict[str, Any], tmp_path: Path) -> None:
    model = save_both_parts(tmp_path, "Siglip")
    vision = {**model.config.to_diff_dict(), **part}
    edit_json(tmp_path / "config.json", architectures=["SiglipForCaptions"], vision_config=vision)
    assert_checkpoint_refused(tmp_path, "SiglipForCaptions")


def test_the_labels_of_a_model_of_images_and_texts_are_those_of_the_whole(tmp_path: Path) -> None:
    model = save_feature_model(tmp_path, "Siglip", "ForImageClassification", num_labels=3)
    settings = {"id2label": {"0": "no", "1": "yes"}, "num_labels": 2, "problem_type": "regression"}
    edit_json(tmp_path / "config.json", vision_config={**model.config.vision_config.to_diff_dict(), **settings})
    head = read_checkpoint(tmp_path).encoder.config.head
    assert head is not None
    assert (head.labels, head.function) == (("LABEL_0", "LABEL_1", "LABEL_2"), ScoreFunction.SOFTMAX)


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("is_saved_again", [False, True])
def test_a_clip_of_sentence_transformers_gives_the_same_vectors_of_images(
    is_saved_again: bool, normalizes: bool, tmp_path: Path
) -> None:
    """Older releases have the module CLIPModel in a folder of its own, and newer ones settings beside the model."""
    st = pytest.importorskip("sentence_transformers")
    folder, image = tmp_path / "clip", Image.fromarray(np.arange(12 * 12 * 3, dtype=np.uint8).reshape(12, 12, 3))
    part = save_both_parts(folder / "0_CLIPModel", "CLIP", vocab_size=clip().get_vocab_size())
    CLIPImageProcessorPil(size=12, crop_size=12).save_pretrained(folder / "0_CLIPModel")
    clip().save(str(folder / "0_CLIPModel" / "tokenizer.json"))
    write_json(folder / "0_CLIPModel" / "tokenizer_config.json", {"tokenizer_class": "CLIPTokenizer"})
    paths = {"CLIPModel": "0_CLIPModel", **({"Normalize": "1_Normalize"} if normalizes else {})}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in paths.items()]
    write_json(folder / "modules.json", [{"idx": i, "name": str(i), **each} for i, each in enumerate(modules)])
    (folder / "1_Normalize").mkdir()
    reference = st.SentenceTransformer(str(folder), device="cpu")
    if is_saved_again:
        folder = tmp_path / "again"
        reference.save(str(folder))
    values = reference.preprocess([image])["pixel_values"][0].numpy()
    encoder = read_checkpoint(folder).encoder
    (outputs,) = run_in_pytorch(encoder, [input_rows(part, values, encoder.config.prefix_rows)])
    assert outputs.pooled is not None
    assert_close_to_scale(outputs.pooled, reference.encode([image]))


def test_a_model_without_a_pooling_that_is_no_clip_is_refused(tmp_path: Path) -> None:
    save_feature_model(tmp_path, "ViT")
    write_modules_json(tmp_path, "Transformer", "Normalize")
    assert_checkpoint_refused(tmp_path, "Transformer, Normalize", "modules.json")
    write_json(tmp_path / "sentence_bert_config.json", {"module_output_name": "sentence_embedding"})
    assert_checkpoint_refused(tmp_path, "images and texts", "Pooling", "modules.json")


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("sentence_bert_config.json", {"module_output_name": "token_embeddings"}),
        ("sentence_bert_config.json", {"modality_config": {"image": {"method": "forward"}}}),
        ("config_sentence_transformers.json", {"truncate_dim": 8}),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}),
    ],
)
def test_a_setting_of_a_clip_of_sentence_transformers_is_named(
    file: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    save_both_parts(tmp_path, "CLIP")
    write_modules_json(tmp_path, "CLIPModel")
    read_checkpoint(tmp_path)
    write_json(tmp_path / file, changes)
    assert_checkpoint_refused(tmp_path, file, *changes)


CLIP_TEXTS = ("a photo of a cat", "Rain, rain!", "the bread is fresh " * 9)


def save_clip_text(folder: Path, kind: str, end: str, eos_token_id: int) -> transformers.PreTrainedModel:
    """Save a checkpoint whose tokenizer ends texts with the token `end`, which gets the largest id if it is new."""
    tokenizer = clip()
    tokenizer.add_special_tokens([end])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "CLIPTokenizer", "eos_token": end})
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "projection_dim": 20, "eos_token_id": eos_token_id}
    return save_family(folder, "CLIPText", kind, "CLIPTextConfig", **sizes)


@pytest.mark.parametrize("kind", ["Model", "ModelWithProjection"])
# Configurations of old releases have 2: transformers then pools the row of the largest id.
@pytest.mark.parametrize(("end", "eos_token_id"), [("<|endoftext|>", 1), ("[END]", 2)])
def test_the_vectors_of_clips_texts_equal_transformers(end: str, eos_token_id: int, kind: str, tmp_path: Path) -> None:
    model = save_clip_text(tmp_path, kind, end, eos_token_id)
    loaded = read_checkpoint(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.encoder.config.pooling is Pooling.LAST
    assert loaded.encoder.config.pooled_width == (20 if kind.endswith("Projection") else 32)
    assert loaded.text is not None
    for text in CLIP_TEXTS:
        ids = tokenizer(text, truncation=True, max_length=24, return_tensors="pt").input_ids
        with torch.inference_mode():
            expected = model(input_ids=ids)
        vectors = expected.text_embeds if kind.endswith("Projection") else expected.pooler_output
        assert_close(run_in_pytorch(loaded.encoder, [ids[0].numpy()])[0].pooled, vectors.numpy())


@pytest.mark.parametrize("eos_token_id", [2, 7])
def test_a_tokenizer_that_ends_texts_with_another_token_is_refused(eos_token_id: int, tmp_path: Path) -> None:
    save_clip_text(tmp_path, "Model", "<|endoftext|>", eos_token_id)
    assert_checkpoint_refused(tmp_path, f"eos_token_id {eos_token_id}", "ends texts with 1", "pooling")
    assert read_checkpoint(tmp_path, Pooling.MEAN).encoder.config.pooling is Pooling.MEAN


SIGLIP_TEXTS = ["a photo of a cat", "RAIN", "the bread is fresh"]
SIGLIP_PLACES = 24
SIGLIP_TOKENIZER = {"tokenizer_class": "GemmaTokenizer", "padding_side": "right", "model_input_names": ["input_ids"]}


def save_siglip_text(folder: Path, name: str = "SiglipText", **settings: Any) -> transformers.PreTrainedModel:
    """Save a checkpoint with SigLIP 2's tokenizer."""
    tokenizer = gemma()
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", SIGLIP_TOKENIZER)
    vocabulary_size = tokenizer.get_vocab_size()
    return save_family(folder, name, vocab_size=vocabulary_size, max_position_embeddings=SIGLIP_PLACES, **settings)


def siglip_vectors(model: transformers.PreTrainedModel, folder: Path) -> Array:
    """Return the vectors of the texts in `transformers`, as its documentation says."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(SIGLIP_TEXTS, padding="max_length", max_length=SIGLIP_PLACES, return_tensors="pt")
    with torch.inference_mode():
        vectors: Array = model(**inputs).pooler_output.numpy()
    return vectors


@pytest.mark.parametrize(("name", "projection"), [("SiglipText", 20), ("SiglipText", None), ("Siglip2Text", 20)])
def test_the_vectors_of_siglips_texts_equal_transformers(name: str, projection: int | None, tmp_path: Path) -> None:
    model = save_siglip_text(tmp_path, name, projection_size=projection)
    loaded = read_checkpoint(tmp_path)
    assert loaded.text is not None
    assert loaded.encoder.config.pooled_width == (projection or 32)
    assert_close(vectors(loaded), siglip_vectors(model, tmp_path))


def vectors(loaded: LoadedModel) -> Array:
    """Return the vectors that a reply has, to a request that names no prompt."""
    text = loaded.text
    assert text is not None
    (prompt,) = (each for each in text.prompts if each.name == text.default_prompt)
    tokenizer, failures = BundleTokenizer(text.tokenizer.encode(), text.max_tokens), Failures(keep=False)
    rows = finish(tokenizer.tokenize(SIGLIP_TEXTS, TokenizeOptions(pb.Prompt(**asdict(prompt))), failures, 9999))
    pooled = concatenate(run_in_pytorch(loaded.encoder, [each.ids for each in rows])).pooled
    assert pooled is not None
    return pooled


def test_another_pooling_of_siglips_texts_leaves_out_the_linear_layer(tmp_path: Path) -> None:
    save_siglip_text(tmp_path)
    loaded = read_checkpoint(tmp_path, Pooling.MEAN)
    assert loaded.encoder.config.pooled_width == 32
    assert loaded.text is not None
    assert loaded.text.default_prompt == "filled"


def test_the_sentences_that_calibrate_int8_are_filled_up(tmp_path: Path) -> None:
    save_siglip_text(tmp_path)
    loaded = read_checkpoint(tmp_path)
    assert loaded.text is not None
    assert {len(ids) for ids in tokenize(loaded.text, loaded.encoder.config).calibration} == {SIGLIP_PLACES}


@pytest.mark.usefixtures("starts_processes", "runs_graphs")
async def test_a_server_pools_images_of_siglip_by_attention_and_takes_no_other_size(tmp_path: Path) -> None:
    model = save_feature_model(tmp_path / "checkpoint", "SiglipVision")
    export_checkpoint(tmp_path / "checkpoint", tmp_path / "bundle", "siglip")
    values = [draw_input(model, seed) for seed in range(3)]
    rows = [input_rows(model, each, 0) for each in values]
    async with serving(tmp_path / "bundle") as server, connect(server) as client:
        description = await client.model()
        encoding = await client.encode_features(rows, pooling="attention")
        with pytest.raises(InvalidInput, match="ATTENTION"):
            await client.encode_features(rows, pooling="mean")
        for wrong, kind in ((rows[1][1:], InvalidInput), (np.concatenate(rows[:2]), SequenceTooLong)):
            with pytest.raises(InvalidInput) as refused:
                await client.encode_features([rows[0], wrong])
            error = refused.value
            assert type(error) is kind
            assert (error.sequence, error.field, error.limit, error.actual) == (1, "features.lengths", 9, len(wrong))
    assert (description.pooling, description.poolings) == ("attention", ("attention",))
    assert (description.min_tokens, description.max_tokens) == (9, 9)
    with torch.inference_mode():
        expected = model(torch.from_numpy(np.stack(values))).pooler_output
    assert_close_to_scale(encoding.pooled, expected.numpy())


@pytest.mark.exhaustive
@pytest.mark.usefixtures("starts_processes", "runs_graphs")
async def test_a_server_fills_up_texts(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    model = save_siglip_text(tmp_path / "checkpoint")
    export_checkpoint(tmp_path / "checkpoint", tmp_path / "bundle", "siglip")
    async with serving(tmp_path / "bundle") as server, connect(server) as client:
        encoding = await client.encode(SIGLIP_TEXTS)
    assert encoding.lengths.tolist() == [SIGLIP_PLACES] * len(SIGLIP_TEXTS)
    assert_close(encoding.pooled, siglip_vectors(model, tmp_path / "checkpoint"))


@pytest.mark.parametrize(
    "wrong",
    [{"padding_side": "left"}, {"pad_token": None}, {"model_input_names": ["input_ids", "attention_mask"]}],
)
def test_texts_that_cannot_be_filled_up_on_the_right_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    save_siglip_text(tmp_path)
    edit_json(tmp_path / "tokenizer_config.json", **wrong)
    assert_checkpoint_refused(tmp_path, "padding")


def test_sentence_transformers_does_not_fill_up_texts(tmp_path: Path) -> None:
    save_siglip_text(tmp_path)
    write_modules_json(tmp_path, "Transformer", "Pooling")
    (tmp_path / "1_Pooling").mkdir()
    write_json(tmp_path / "1_Pooling" / "config.json", {"pooling_mode_lasttoken": True})
    assert_checkpoint_refused(tmp_path, "modules.json")
