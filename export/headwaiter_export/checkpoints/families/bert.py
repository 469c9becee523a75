"""BERT, and the families that kept its layers: RoBERTa, ELECTRA, ALBERT, RoFormer, MPNet, DistilBERT and others."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwaiter_export.checkpoints.families.distance_buckets import fold_buckets
from headwaiter_export.checkpoints.families.family import (
    USUAL_SIZES,
    Family,
    SequenceHead,
    TokenInput,
    VocabularyNames,
    with_only_type,
)
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.checkpoints.weights import take_tensor
from headwaiter_export.config.choices import Norm, Positions
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.head import HeadActivation
from headwaiter_export.encoder.positions import position_angles, rotary_frequencies

# The names of BERT's modules, which families after BERT kept, for `module_names` and `layer_module_names`.
BERT_MODULES: dict[str, str] = {
    "embedding.tokens": "embeddings.word_embeddings",
    "embedding.types": "embeddings.token_type_embeddings",
    "embedding.positions.table": "embeddings.position_embeddings",
    "embedding.norm": "embeddings.LayerNorm",
}
BERT_LAYER_MODULES: dict[str, str] = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
# The differences of families whose norms are before the blocks and after the last layer.
_PRE_NORM = {"norm": Norm.PRE, "final_norm": True, "embedding_norm": False}
_PRE_NORM_MODULES = {name: module for name, module in BERT_MODULES.items() if name != "embedding.norm"}
_WORDS = "embeddings.word_embeddings.weight"
_ROTATIONS = "encoder.embed_positions.weight"
_BIAS = "encoder.relative_attention_bias"


@dataclass(frozen=True)
class RotaryTokenInput(TokenInput):
    """Token ids of type 0 without a position table: attention rotates queries and keys."""

    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Add the vector of the only token type to all others, and check the angles that the checkpoint stores."""
        table = take_tensor(tensors, _WORDS, (config.vocabulary_size, config.embedding_width))
        tensors[_WORDS] = with_only_type(table, tensors, config)
        stored = take_tensor(tensors, _ROTATIONS, (config.max_tokens, config.head_dim))
        angles = position_angles(config.max_tokens, rotary_frequencies(config.head_dim))
        # Checkpoints in half precision store rounded values.
        if not torch.allclose(stored.double(), torch.cat((angles.sin(), angles.cos()), 1), rtol=0, atol=1e-2):
            raise CheckpointError(
                f"tensor {_ROTATIONS} does not hold the sines and cosines of rotary positions with base 10,000: only "
                "these positions are supported"
            )


@dataclass(frozen=True)
class BucketedTokenInput(TokenInput):
    """Token ids of a model that adds a number to each score, one for each bucket of distances from query to key.

    The buckets are those of T5 (https://arxiv.org/abs/1910.10683, section 2.1): half of them for each direction. Of
    these, half are for one distance each, and the others for ranges that grow by a constant factor up to 128.
    """

    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Replace the number of each bucket by the number of each distance."""
        super().fold_tensors(tensors, config_json, config)
        fold_buckets(tensors, _BIAS, config)


BERT = Family(
    input=TokenInput(),
    tensor_prefix="bert.",
    size_fields=USUAL_SIZES,
    activation_field="hidden_act",
    module_names=BERT_MODULES,
    layer_prefix="encoder.layer",
    layer_module_names=BERT_LAYER_MODULES,
    ignored_prefixes=("embeddings.position_ids", "pooler.", "cls."),
    sequence_head=SequenceHead("classifier", "pooler.dense", HeadActivation.TANH),
    vocabulary_head=VocabularyNames(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.decoder",
        "cls.predictions.bias",
    ),
)
_ROBERTA_VOCABULARY = VocabularyNames(
    "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias", HeadActivation.GELU
)
_ROBERTA_HEAD = SequenceHead("classifier.out_proj", "classifier.dense", HeadActivation.TANH)
ROBERTA = replace(
    BERT,
    input=TokenInput(positions_follow_padding=True),
    tensor_prefix="roberta.",
    ignored_prefixes=("embeddings.position_ids", "pooler.", "lm_head."),
    sequence_head=_ROBERTA_HEAD,
    vocabulary_head=_ROBERTA_VOCABULARY,
)
DATA2VEC = replace(ROBERTA, tensor_prefix="data2vec_text.")
XLM_ROBERTA_XL = replace(
    ROBERTA,
    module_names={**_PRE_NORM_MODULES, "norm": "encoder.LayerNorm"},
    layer_module_names={
        **BERT_LAYER_MODULES,
        "attention_norm": "attention.self_attn_layer_norm",
        "feed_forward_norm": "LayerNorm",
    },
    fixed_fields=_PRE_NORM,
)
MEGATRON_BERT = replace(
    BERT,
    module_names={**_PRE_NORM_MODULES, "norm": "encoder.ln"},
    layer_module_names={**BERT_LAYER_MODULES, "attention_norm": "attention.ln", "feed_forward_norm": "ln"},
    fixed_fields=_PRE_NORM,
)
ERNIE = replace(BERT, tensor_prefix="ernie.", required_fields={"use_task_id": False})
ELECTRA = replace(
    BERT,
    tensor_prefix="electra.",
    size_fields={**BERT.size_fields, "embedding_width": "embedding_size"},
    module_names={**BERT_MODULES, "embedding.projection": "embeddings_project"},
    ignored_prefixes=("embeddings.position_ids", "discriminator_predictions.", "generator_"),
    sequence_head=replace(_ROBERTA_HEAD, activation=HeadActivation.GELU),
    vocabulary_head=None,
)
REMBERT = replace(
    BERT,
    tensor_prefix="rembert.",
    size_fields={**BERT.size_fields, "embedding_width": "input_embedding_size"},
    module_names={**BERT_MODULES, "embedding.projection": "encoder.embedding_hidden_mapping_in"},
    vocabulary_head=None,
)
ROFORMER = replace(
    ELECTRA,
    input=RotaryTokenInput(),
    tensor_prefix="roformer.",
    module_names={name: module for name, module in ELECTRA.module_names.items() if "positions" not in name},
    ignored_prefixes=("pooler.", "cls."),
    fixed_fields={"positions": Positions.ROTARY},
    required_fields={"rotary_value": False},
    sequence_head=replace(_ROBERTA_HEAD, activation=None),
)
ALBERT = replace(
    ELECTRA,
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
MPNET = replace(
    BERT,
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
    vocabulary_head=_ROBERTA_VOCABULARY,
    fixed_fields={"distance_bias": True},
    # transformers ignores both fields, and uses these values.
    required_fields={"relative_attention_num_buckets": 32, "pad_token_id": 1},
)
DISTILBERT = Family(
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
    sequence_head=SequenceHead("classifier", "pre_classifier", HeadActivation.RELU),
    vocabulary_head=VocabularyNames("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"),
)
