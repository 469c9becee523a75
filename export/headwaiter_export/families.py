"""The supported families of checkpoints: how each names its configuration fields and its tensors.

`checkpoints.py` chooses a family by `model_type` in config.json, and translates the family's names into those of
EncoderConfig and `Encoder.state_dict()`. A new family needs an entry here. A new kind of input needs code.
"""

from dataclasses import replace

from headwaiter_export.checkpoint_inputs import BucketedTokenInput, RotaryTokenInput, TokenInput
from headwaiter_export.choices import Norm, Positions
from headwaiter_export.deberta_family import DEBERTA_V2
from headwaiter_export.decoder_families import DECODER_FAMILIES
from headwaiter_export.family import BERT_LAYER_MODULES, BERT_MODULES, USUAL_SIZES, Family, SequenceHead
from headwaiter_export.gemma3_family import GEMMA3
from headwaiter_export.head_config import HeadActivation
from headwaiter_export.modern_families import MODERN_FAMILIES
from headwaiter_export.t5_family import T5

_BERT = Family(
    input=TokenInput(),
    tensor_prefix="bert.",
    size_fields=USUAL_SIZES,
    activation_field="hidden_act",
    module_names=BERT_MODULES,
    layer_prefix="encoder.layer",
    layer_module_names=BERT_LAYER_MODULES,
    ignored_prefixes=("embeddings.position_ids", "pooler.", "cls."),
    sequence_head=SequenceHead("classifier", "pooler.dense", HeadActivation.TANH),
)
_ROBERTA_HEAD = SequenceHead("classifier.out_proj", "classifier.dense", HeadActivation.TANH)
_ROBERTA = replace(
    _BERT,
    input=TokenInput(positions_follow_padding=True),
    tensor_prefix="roberta.",
    ignored_prefixes=("embeddings.position_ids", "pooler.", "lm_head."),
    sequence_head=_ROBERTA_HEAD,
)
_DATA2VEC = replace(_ROBERTA, tensor_prefix="data2vec_text.")
_XLM_ROBERTA_XL = replace(
    _ROBERTA,
    module_names={
        **{name: module for name, module in BERT_MODULES.items() if name != "embedding.norm"},
        "norm": "encoder.LayerNorm",
    },
    layer_module_names={
        **BERT_LAYER_MODULES,
        "attention_norm": "attention.self_attn_layer_norm",
        "feed_forward_norm": "LayerNorm",
    },
    fixed_fields={"norm": Norm.PRE, "final_norm": True, "embedding_norm": False},
    default_norm_eps=1e-5,
)
_ERNIE = replace(_BERT, tensor_prefix="ernie.", required_fields={"use_task_id": False})
_ELECTRA = replace(
    _BERT,
    tensor_prefix="electra.",
    size_fields={**_BERT.size_fields, "embedding_width": "embedding_size"},
    module_names={**BERT_MODULES, "embedding.projection": "embeddings_project"},
    ignored_prefixes=("embeddings.position_ids", "discriminator_predictions.", "generator_"),
    sequence_head=replace(_ROBERTA_HEAD, activation=HeadActivation.GELU),
)
_ROFORMER = replace(
    _ELECTRA,
    input=RotaryTokenInput(),
    tensor_prefix="roformer.",
    module_names={name: module for name, module in _ELECTRA.module_names.items() if "positions" not in name},
    ignored_prefixes=("pooler.", "cls."),
    fixed_fields={"positions": Positions.ROTARY},
    required_fields={"rotary_value": False},
    sequence_head=replace(_ROBERTA_HEAD, activation=None),
)
_ALBERT = replace(
    _ELECTRA,
    tensor_prefix="albert.",
    module_names={**BERT_MODULES, "embedding.projection": "encoder.embedding_hidden_mapping_in"},
    shared_module_names={
        part: f"encoder.albert_layer_groups.0.albert_layers.0.{module}"
        for part, module in (
            ("attention.query", "attention.query"),
            ("attention.key", "attention.key"),
            ("attention.value", "attention.value"),
            ("attention.output", "attention.dense"),
            ("attention_norm", "attention.LayerNorm"),
            ("feed_forward.up", "ffn"),
            ("feed_forward.down", "ffn_output"),
            ("feed_forward_norm", "full_layer_layer_norm"),
        )
    },
    ignored_prefixes=("embeddings.position_ids", "pooler.", "predictions.", "sop_classifier."),
    required_fields={"num_hidden_groups": 1, "inner_group_num": 1},
    sequence_head=SequenceHead("classifier", "pooler", HeadActivation.TANH),
)
_MPNET = replace(
    _BERT,
    input=BucketedTokenInput(positions_follow_padding=True, has_types=False),
    tensor_prefix="mpnet.",
    layer_module_names={
        **BERT_LAYER_MODULES,
        "attention.query": "attention.attn.q",
        "attention.key": "attention.attn.k",
        "attention.value": "attention.attn.v",
        "attention.output": "attention.attn.o",
        "attention_norm": "attention.LayerNorm",
    },
    shared_module_names={"attention.distances": "encoder.relative_attention_bias"},
    ignored_prefixes=("embeddings.position_ids", "pooler.", "lm_head."),
    sequence_head=_ROBERTA_HEAD,
    fixed_fields={"distance_bias": True},
    # transformers ignores both fields, and uses these values.
    required_fields={"relative_attention_num_buckets": 32, "pad_token_id": 1},
)
_DISTILBERT = Family(
    input=TokenInput(has_types=False),
    tensor_prefix="distilbert.",
    size_fields={"d_model": "dim", "heads": "n_heads", "layers": "n_layers", "d_ff": "hidden_dim"},
    activation_field="activation",
    module_names=BERT_MODULES,
    layer_prefix="transformer.layer",
    layer_module_names={
        "attention.query": "attention.q_lin",
        "attention.key": "attention.k_lin",
        "attention.value": "attention.v_lin",
        "attention.output": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "feed_forward.up": "ffn.lin1",
        "feed_forward.down": "ffn.lin2",
        "feed_forward_norm": "output_layer_norm",
    },
    ignored_prefixes=("vocab_transform.", "vocab_layer_norm.", "vocab_projector."),
    norm_eps=1e-12,
    aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    sequence_head=SequenceHead("classifier", "pre_classifier", HeadActivation.RELU),
)

# Families of texts by `model_type` in config.json; feature_families.py has those of images and audio.
FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "xlm-roberta-xl": _XLM_ROBERTA_XL,
    "camembert": _ROBERTA,
    "data2vec-text": _DATA2VEC,
    "ernie": _ERNIE,
    "electra": _ELECTRA,
    "mpnet": _MPNET,
    "albert": _ALBERT,
    "roformer": _ROFORMER,
    "distilbert": _DISTILBERT,
    "deberta-v2": DEBERTA_V2,
    **MODERN_FAMILIES,
    **DECODER_FAMILIES,
    "gemma3_text": GEMMA3,
    "t5": T5,
}
