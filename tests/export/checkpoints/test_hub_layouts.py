"""Checkpoints whose config.json has the fields of custom code give the hidden rows of `transformers`' own classes."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import run_in_pytorch
from tests.export.checkpoints.test_heads import assert_equal_logits
from tests.support.checkpoints import save_sentence_transformer, write_json
from tests.support.export.family_checkpoints import SIZES, assert_equals_transformers, save_family
from tests.support.export.helpers import (
    assert_checkpoint_refused,
    assert_close_to_scale,
    changed_tensors,
    drop_fields,
    edit_json,
)
from tests.support.export.hub_checkpoints import (
    JINA,
    NOMIC,
    NOMIC_EXPERTS,
    TASKS,
    Formulas,
    save_jina,
    save_jina_v2,
    save_new,
    save_nomic,
    save_nomic_experts,
)
from tests.support.export.tokenizer_folders import ROBERTA_TOKENS, unigram


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation_function": "geglu", "layer_norm_epsilon": 0.1},
        {"rotary_emb_base": 10_000.0, "moe_every_n_layers": 0, "head_dim": 4},
    ],
)
def test_a_nomic_bert_of_its_own_code_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    model = save_nomic(tmp_path, **changes)
    assert "encoder.layers.1.mlp.fc11.weight" in safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert_equals_transformers(read_checkpoint(tmp_path).encoder, model, (1, 2, 13, 24))


def test_a_nomic_bert_whose_positions_are_scaled_for_long_texts_refuses_these(tmp_path: Path) -> None:
    model = save_nomic(tmp_path, rotary_scaling_factor=2.0, max_trained_positions=10)
    encoder = read_checkpoint(tmp_path).encoder
    assert encoder.config.max_tokens == 10
    assert_equals_transformers(encoder, model, (1, 10))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_scaling": None, "type_vocab_size": 1, "layer_norm_eps": 0.1},
        {"rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": None}, "rope_theta": 20, "hidden_act": "gelu_new"},
        {"rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": 77}},
        {"rope_parameters": {}, "head_dim": 4, "partial_rotary_factor": 0.5},
        {"model_type": "gte", "auto_map": {"AutoModel": "modeling_hf_alibaba_nlp_gte.GteModel"}},
    ],
)
def test_a_gte_of_its_own_code_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    model = save_new(tmp_path, **changes)
    assert "encoder.layer.1.mlp.up_gate_proj.weight" in safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert_equals_transformers(read_checkpoint(tmp_path).encoder, model, (1, 2, 13, 24))


def assert_equals_formulas(encoder: Encoder, model: Formulas) -> None:
    for tokens in (1, 2, 13, 24):
        ids = np.random.default_rng(tokens).integers(0, 60, tokens)
        (outputs,) = run_in_pytorch(encoder, [ids])
        assert_close_to_scale(outputs.hidden, model(torch.from_numpy(ids)[None])[0][0].numpy())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"moe_top_k": 1, "use_rms_norm": False},
        {"moe_top_k": 4},
        {"num_experts": 3, "moe_every_n_layers": 3, "rotary_emb_base": 9.0},
        # No layer has experts.
        {"moe_every_n_layers": 0},
        {"moe_every_n_layers": 1, "layer_norm_epsilon": 0.1},
    ],
)
def test_a_nomic_bert_with_experts_equals_its_formulas(changes: dict[str, Any], tmp_path: Path) -> None:
    model = save_nomic_experts(tmp_path, **changes)
    assert_equals_formulas(read_checkpoint(tmp_path).encoder, model)


@pytest.mark.parametrize("adapter", [None, *TASKS])
def test_each_adapter_of_jina_equals_its_formula_in_transformers(adapter: str | None, tmp_path: Path) -> None:
    model = save_jina(tmp_path, adapter)
    loaded = read_checkpoint(tmp_path, adapter=adapter)
    assert_equals_transformers(loaded.encoder, model, (1, 2, 13, 24))
    assert any("--adapter" in line for line in loaded.assumptions) == (adapter is None)


@pytest.mark.parametrize(
    "changes",
    [{}, {"num_attention_heads": 4, "type_vocab_size": 1}, {"layer_norm_eps": 0.1, "intermediate_size": 20}],
)
def test_a_jina_v2_equals_its_formulas(changes: dict[str, Any], tmp_path: Path) -> None:
    model = save_jina_v2(tmp_path, **changes)
    assert_equals_formulas(read_checkpoint(tmp_path, Pooling.MEAN).encoder, model)


# Other values of each field of the code; the export follows the change, or names the field.
JINA_CHANGES: dict[str, list[Any]] = {
    **{field: [] for field in ("model_type", "architectures", *SIZES)},
    "auto_map": [{"AutoModel": "modeling_lora.XLMRobertaOther"}, None],
    "emb_pooler": ["cls"],
    "hidden_act": ["relu", "gelu_new"],
    "layer_norm_eps": [0.1],
    "load_trained_adapters": [False, None],
    "lora_adaptations": [TASKS[:3], [*TASKS, "other"], "separation", None, ["separation"] * 5],
    "lora_alpha": [4, 0.5, "1"],
    "lora_dropout_p": [0.5],
    "lora_main_params_trainable": [True],
    "lora_rank": [2, 8, None],
    "matryoshka_dimensions": [None],
    "pad_token_id": [5],
    "position_embedding_type": ["absolute", "alibi"],
    "rotary_emb_base": [9.0, 10_000],
    "task_instructions": [],
    "truncate_dim": [8],
    "type_vocab_size": [2],
    "use_flash_attn": [False],
}
FOLLOWED = ("lora_alpha", "rotary_emb_base")


def test_every_field_of_the_code_of_jina_is_changed() -> None:
    assert JINA_CHANGES.keys() == JINA.keys()


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in JINA_CHANGES.items() for value in values]
)
def test_a_changed_field_of_the_code_of_jina_is_followed_or_named(field: str, value: Any, tmp_path: Path) -> None:
    followed = field in FOLLOWED and not isinstance(value, str)
    model = save_jina(tmp_path, "separation", **({field: value} if followed else {}))
    edit_json(tmp_path / "config.json", **{field: value})
    if field == "layer_norm_eps":
        assert read_checkpoint(tmp_path, adapter="separation").encoder.config.norm_eps == value
        return
    ignored = ("emb_pooler", "lora_dropout_p", "lora_main_params_trainable", "matryoshka_dimensions", "use_flash_attn")
    if followed or field in (*ignored, "pad_token_id"):
        assert_equals_transformers(read_checkpoint(tmp_path, adapter="separation").encoder, model, (1, 24))
        return
    # Another rank or number of adapters does not fit the tensors, which the error then names.
    with pytest.raises(CheckpointError) as refusal:
        read_checkpoint(tmp_path, adapter="separation")
    # Without known code and rotary positions, the family is XLM-RoBERTa itself, which has no adapters.
    assert any(
        part in str(refusal.value) for part in (field, "auto_map", "position_embedding_type", "lora_A", "token_type")
    )


@pytest.mark.parametrize("field", ["lora_adaptations", "load_trained_adapters", "lora_rank"])
@pytest.mark.parametrize("adapter", [None, "separation"])
def test_a_missing_field_of_adapters_is_named(field: str, adapter: str | None, tmp_path: Path) -> None:
    save_jina(tmp_path)
    drop_fields(tmp_path / "config.json", field)
    with pytest.raises(CheckpointError, match=f"no field {field}"):
        read_checkpoint(tmp_path, adapter=adapter)


@pytest.mark.parametrize("keeps_original", [True, False])
def test_a_weight_without_adapters_beside_others_is_refused(keeps_original: bool, tmp_path: Path) -> None:
    save_jina(tmp_path)
    module = "roberta.encoder.layers.1.mlp.fc2"
    prefix = f"{module}.parametrizations.weight"
    with changed_tensors(tmp_path) as tensors:
        tensors[f"{module}.weight"] = tensors[f"{prefix}.original"].clone()
        if not keeps_original:
            for name in ("original", "0.lora_A", "0.lora_B"):
                del tensors[f"{prefix}.{name}"]
    assert_checkpoint_refused(tmp_path, "encoder.layers.1.mlp.fc2.weight", "adapters")


def test_the_instructions_of_tasks_are_prompts_without_other_prompts(tmp_path: Path) -> None:
    save_jina(tmp_path, vocab_size=400)
    unigram(special_tokens=ROBERTA_TOKENS).save(str(tmp_path / "tokenizer.json"))
    text = read_checkpoint(tmp_path, adapter="retrieval.query").text
    assert text is not None
    assert {prompt.name: prompt.text for prompt in text.prompts} == JINA["task_instructions"]
    assert text.default_prompt == "retrieval.query"


@pytest.mark.parametrize(
    ("adapter", "facts"),
    [("clustering", ["'clustering'", "'retrieval.query', 'retrieval.passage'"]), ("", ["''"])],
)
def test_an_unknown_adapter_is_refused_with_the_known_ones(adapter: str, facts: list[str], tmp_path: Path) -> None:
    save_jina(tmp_path)
    with pytest.raises(CheckpointError) as refusal:
        read_checkpoint(tmp_path, adapter=adapter)
    assert all(fact in str(refusal.value) for fact in facts)


def test_an_adapter_of_another_family_is_refused(tmp_path: Path) -> None:
    save_family(tmp_path, "Bert")
    with pytest.raises(CheckpointError, match="adapter"):
        read_checkpoint(tmp_path, adapter="separation")


@pytest.mark.parametrize("adapter", [None, "retrieval.query", "separation"])
def test_the_prompt_of_an_adapter_is_the_default(adapter: str | None, tmp_path: Path) -> None:
    save_jina(tmp_path, vocab_size=400)
    save_sentence_transformer(tmp_path)
    unigram(special_tokens=ROBERTA_TOKENS).save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "XLMRobertaTokenizer"})
    listed = json.loads((tmp_path / "modules.json").read_text())
    listed[0] |= {"type": "custom_st.Transformer", "kwargs": ["task"]}
    write_json(tmp_path / "modules.json", listed)
    prompts = {"retrieval.query": "the rain ", "retrieval.passage": "the bread "}
    write_json(tmp_path / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": None})
    text = read_checkpoint(tmp_path, adapter=adapter).text
    assert text is not None
    assert [prompt.name for prompt in text.prompts] == list(prompts)
    assert text.default_prompt == (adapter if adapter in prompts else "")


@pytest.mark.parametrize("prefix", ["", "new."])
def test_a_gte_that_transformers_has_saved_again_equals_it(prefix: str, tmp_path: Path) -> None:
    model = save_family(
        tmp_path, "Gte", pad_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": 77}, type_vocab_size=1
    )
    edit_json(tmp_path / "config.json", auto_map={"AutoModel": "modeling_hf_alibaba_nlp_gte.GteModel"})
    with changed_tensors(tmp_path) as tensors:
        for name in list(tensors):
            tensors[f"{prefix}{name}"] = tensors.pop(name)
    assert_equals_transformers(read_checkpoint(tmp_path).encoder, model, (1, 24))


def save_new_with_head(folder: Path, kind: str, **changes: Any) -> transformers.PreTrainedModel:
    """Save a GTE with a head in the layout of its code."""
    model = save_new(folder, kind, architectures=[f"New{kind}"], **changes)
    with changed_tensors(folder) as tensors:
        for name in list(tensors):
            tensors[name.replace("gte.", "new.")] = tensors.pop(name)
        assert any(name.startswith("new.encoder.") for name in tensors)
    return model


def test_an_embedder_saved_with_a_head_of_the_code_of_gte_equals_transformers(tmp_path: Path) -> None:
    # gte-multilingual-base has a head for sparse vectors, and no names of labels.
    model = save_new_with_head(tmp_path, "ForTokenClassification", type_vocab_size=1)
    save_sentence_transformer(tmp_path)
    assert "classifier.weight" in safetensors.torch.load_file(tmp_path / "model.safetensors")
    encoder = read_checkpoint(tmp_path).encoder
    assert encoder.config.head is None
    assert encoder.config.pooling is Pooling.MEAN
    assert_equals_transformers(encoder, model.base_model, (1, 24))


def test_a_reranker_of_the_code_of_gte_equals_transformers(tmp_path: Path) -> None:
    model = save_new_with_head(tmp_path, "ForSequenceClassification")
    encoder = read_checkpoint(tmp_path).encoder
    assert encoder.config.head is not None
    assert_equals_transformers(encoder, model.base_model, (1, 24))
    assert_equal_logits(encoder, model, (1, 24))


@pytest.mark.parametrize(
    ("field", "value"),
    [("prenorm", True), ("causal", True), ("rotary_emb_interleaved", True), ("layer_norm_epsilon", 0.3)],
)
def test_the_code_of_nomic_bert_is_known_by_its_classes_whatever_the_names_of_sizes(
    field: str, value: Any, tmp_path: Path
) -> None:
    model = save_nomic(tmp_path)
    config_json = json.loads((tmp_path / "config.json").read_text())
    names = {
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings",
    }
    renamed = {names.get(name, name): each for name, each in config_json.items()}
    write_json(tmp_path / "config.json", renamed)
    assert_equals_transformers(read_checkpoint(tmp_path).encoder, model, (1, 24))
    write_json(tmp_path / "config.json", {**renamed, field: value})
    if field == "layer_norm_epsilon":
        assert read_checkpoint(tmp_path).encoder.config.norm_eps == value
    else:
        assert_checkpoint_refused(tmp_path, field)


save_snowflake = partial(save_new, model_type="gte", auto_map={"AutoModel": "modeling.GteModel"})
# Values of fields of each code that the encoder lacks.
GTE_LACKS: dict[str, list[Any]] = {
    "layer_norm_type": ["rms_norm"],
    "logn_attention_clip1": [True],
    "logn_attention_scale": [True],
    "pack_qkv": [False],
    "position_embedding_type": ["absolute"],
    "rope_scaling": [
        {"type": "linear", "factor": 2.0},
        {"type": "ntk", "factor": 2.0, "mixed_b": 0.5},
        {"type": "ntk"},
        {"type": "ntk", "factor": 2.0, "alpha": 1.0},
        "ntk",
    ],
    "rope_parameters": [{"rope_type": "ntk", "factor": 2.0, "rope_theta": 77}],
    "rope_theta": ["77"],
    "hidden_act": ["mish"],
    "auto_map": [{"AutoModel": "modeling.OtherModel"}],
}
LACKING: list[tuple[Callable[..., Any], dict[str, list[Any]]]] = [
    (
        save_nomic,
        {
            **{field: [not value] for field, value in NOMIC.items() if isinstance(value, bool)},
            "activation_function": ["glu", "gelu_new"],
            "moe_every_n_layers": [2],
            "num_heads_kv": [2],
            "rotary_emb_fraction": [0.5],
            "rotary_emb_scale_base": [512],
            "rotary_head_dim": [True],
            "n_inner": [None],
            "n_positions": [0],
            "rotary_emb_base": ["1"],
            "auto_map": [
                {"AutoModel": "modeling.NomicBertSteeredModel"},
                {"AutoTokenizer": [None, "modeling.NomicBertModel"]},
                "modeling.NomicBertModel",
            ],
        },
    ),
    (
        save_nomic_experts,
        {
            **{field: [not value] for field, value in NOMIC_EXPERTS.items() if isinstance(value, bool)},
            "use_rms_norm": [True],
            "num_shared_experts": [1],
            "ffn_div": [2],
            "num_experts": [5, None],
            "moe_top_k": [5, 0],
            "moe_every_n_layers": [3, -1],
            "activation_function": ["gelu_new"],
            "auto_map": [{"AutoModel": "modeling.OtherModel"}],
        },
    ),
    (save_new, GTE_LACKS),
    (save_snowflake, GTE_LACKS),
    (
        save_jina_v2,
        {
            "auto_map": [
                {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"},
                {"AutoModel": "modeling_bert.JinaBertModel"},
                {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.OtherModel"},
                {"AutoModel": None},
                "modeling_bert.JinaBertModel",
                {},
            ],
            "position_embedding_type": ["absolute", None],
            "feed_forward_type": ["reglu", "original", None],
            "hidden_act": ["gelu_new", "relu"],
            "is_decoder": [True],
            "num_attention_heads": [5],
            "intermediate_size": [32],
        },
    ),
    (
        save_jina,
        {"rotary_emb_interleaved": [True], "rotary_emb_scale_base": [512.0], "rotary_emb_dim": [4]},
    ),
]
# An error may name these instead of the field: the tensors that do not fit, a field of transformers, and what the
# family refuses whose type the checkpoint has.
OTHER_NAMES = (
    *("active experts", "mlp.router", "mlp.experts", "mlp.fc1", "gated_layers"),
    *("rope_theta", "position_embedding_type", "heads"),
)


@pytest.mark.parametrize(
    ("save", "field", "value"),
    [(save, field, value) for save, fields in LACKING for field, values in fields.items() for value in values],
)
def test_a_field_of_the_code_that_the_encoder_lacks_is_named(
    save: Callable[..., Any], field: str, value: Any, tmp_path: Path
) -> None:
    save(tmp_path)
    edit_json(tmp_path / "config.json", **{field: value})
    with pytest.raises(CheckpointError) as refusal:
        read_checkpoint(tmp_path, Pooling.MEAN)
    assert any(name in str(refusal.value) for name in (field, *OTHER_NAMES))


@pytest.mark.parametrize(
    ("save", "field"),
    [
        *((save_nomic, field) for field in ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "rotary_emb_fraction")),
        *((save_jina_v2, field) for field in ("position_embedding_type", "feed_forward_type")),
    ],
)
def test_a_missing_field_has_the_default_of_the_code(save: Callable[..., Any], field: str, tmp_path: Path) -> None:
    save(tmp_path)
    drop_fields(tmp_path / "config.json", field)
    assert_checkpoint_refused(tmp_path, field, "lacks")


def test_a_jina_v2_without_a_number_of_token_types_has_that_of_its_code(tmp_path: Path) -> None:
    save_jina_v2(tmp_path)
    drop_fields(tmp_path / "config.json", "type_vocab_size")
    read_checkpoint(tmp_path, Pooling.MEAN)


def test_instructions_of_tasks_that_are_no_object_are_refused(tmp_path: Path) -> None:
    save_jina(tmp_path, vocab_size=400)
    unigram(special_tokens=ROBERTA_TOKENS).save(str(tmp_path / "tokenizer.json"))
    edit_json(tmp_path / "config.json", task_instructions="query: ")
    assert_checkpoint_refused(tmp_path, "prompts")
