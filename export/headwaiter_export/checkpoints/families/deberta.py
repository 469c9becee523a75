"""The families of DeBERTa, v1, v2 and v3 (https://arxiv.org/abs/2006.03654, https://arxiv.org/abs/2111.09543)."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoints.activations import ACTIVATIONS
from headwaiter_export.checkpoints.families.bert import BERT_LAYER_MODULES, BERT_MODULES
from headwaiter_export.checkpoints.families.family import USUAL_SIZES, Family, SequenceHead, TokenInput
from headwaiter_export.checkpoints.json_files import CheckpointJson
from headwaiter_export.checkpoints.weights import take_tensor
from headwaiter_export.config.choices import Positions
from headwaiter_export.config.encoder import EncoderConfig

_WORDS, _POSITIONS, _TYPES = (f"embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type"))
_CONTENT_TO_POSITION, _POSITION_TO_CONTENT = "c2p", "p2c"


class _Settings(NamedTuple):
    """The fields of config.json that only this family has.

    Attributes:
        terms: which products with vectors of distances are part of the scores.
        is_relative: whether there are such vectors; without them, `terms` still divides the scores.
        shares_projections: whether the projections of queries and keys also project the vectors.
        normalizes_vectors: whether a norm follows the vectors.
        buckets: number of buckets in each direction; 0 if each distance has a vector.
        farthest: distance from which all distances have the same vector.
        embedding_width: width of the embeddings, which are projected to the width of the encoder.
        types: number of token types.
    """

    terms: set[str]
    is_relative: bool
    shares_projections: bool
    normalizes_vectors: bool
    buckets: int
    farthest: int
    embedding_width: int
    types: int

    @classmethod
    def read(cls, config_json: CheckpointJson) -> "_Settings":
        """Read and check the fields."""
        width, longest = config_json.size("hidden_size"), config_json.size("max_position_embeddings")
        buckets = max(0, config_json.size("position_buckets", least=-1))
        if buckets == 1:
            raise config_json.error("position_buckets", "it must be 2 or more, or -1 for a vector of each distance")
        farthest = config_json.size("max_relative_positions", least=-1)
        if farthest < 1:
            farthest = longest
        # Half of the buckets are for one distance each, the others for ranges up to `farthest`.
        if buckets and farthest - 1 <= buckets // 2 < longest - 1:
            raise config_json.error("max_relative_positions", f"it must be more than {buckets // 2 + 1}")
        return cls(
            terms=_read_terms(config_json),
            is_relative=config_json.boolean("relative_attention"),
            shares_projections=config_json.boolean("share_att_key"),
            normalizes_vectors=config_json.choice("norm_rel_ebd", {"none": False, "layer_norm": True}),
            buckets=buckets,
            farthest=farthest,
            embedding_width=config_json.size("embedding_size") if "embedding_size" in config_json.values else width,
            types=config_json.size("type_vocab_size", least=0),
        )


def _read_terms(config_json: CheckpointJson) -> set[str]:
    value = config_json.values["pos_att_type"]
    if isinstance(value, str):
        names = {each.strip() for each in value.lower().split("|")}
    else:
        names = {*config_json.strings("pos_att_type")}
    if not names <= {_CONTENT_TO_POSITION, _POSITION_TO_CONTENT}:
        raise config_json.error("pos_att_type", f"only {_CONTENT_TO_POSITION} and {_POSITION_TO_CONTENT} are supported")
    return names


@dataclass(frozen=True)
class DebertaInput(TokenInput):
    """Token ids of an encoder that multiplies queries and keys with vectors of distances."""

    @override
    def sizes(self, config_json: CheckpointJson) -> dict[str, Any]:
        width, heads = config_json.size("hidden_size"), config_json.size("num_attention_heads")
        for name, expected in (("pooler_hidden_size", width), ("attention_head_size", width // heads)):
            if config_json.values.get(name) not in (None, expected):
                raise config_json.error(name, f"it must be {expected}, because hidden_size is {width}")
        settings = _Settings.read(config_json)
        convolution = config_json.size("conv_kernel_size", least=0)
        if convolution:
            if not convolution % 2:
                raise config_json.error("conv_kernel_size", "it must be an odd number, or 0")
            activation = config_json.choice("hidden_act", ACTIVATIONS)
            if config_json.values["conv_act"] not in [name for name, each in ACTIVATIONS.items() if each is activation]:
                supported = f"the export supports only that of hidden_act, {config_json.values['hidden_act']}"
                raise config_json.error("conv_act", f"{supported}; without the field, it is tanh")
            config_json.require({"conv_groups": 1})
        return {
            **super().sizes(config_json),
            "convolution_kernel": convolution,
            "positions": Positions.LEARNED if config_json.boolean("position_biased_input") else Positions.NONE,
            "distance_keys": settings.is_relative and _CONTENT_TO_POSITION in settings.terms,
            "distance_queries": settings.is_relative and _POSITION_TO_CONTENT in settings.terms,
        }

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Fold the projection of embeddings and the scale of scores into weights; give each distance its vectors."""
        settings = _Settings.read(config_json)
        _fold_embeddings(tensors, settings, config)
        if config.convolution_kernel:
            shape = (config.d_model, config.d_model, config.convolution_kernel)
            kernel = take_tensor(tensors, "encoder.conv.conv.weight", shape)
            # The rows of neighbours are concatenated, so the kernel [out, in, size] becomes [out, size · in].
            tensors["encoder.conv.conv.weight"] = kernel.transpose(1, 2).flatten(1)
        vectors = _take_vectors(tensors, settings, config)
        # The scores are divided by √(head_dim · number of terms).
        scale = 1 / math.sqrt(1 + len(settings.terms))
        prefix = "" if settings.shares_projections else "pos_"
        for layer in range(config.layers):
            module = f"encoder.layer.{layer}.attention.self"
            if config.distance_keys:
                # The vectors are those of distances from key to query.
                table = _project(vectors, tensors, f"{module}.{prefix}key_proj", settings, config)
                tensors[f"{module}.distance_keys.table"] = table.flip(1)
            if config.distance_queries:
                table = _project(vectors, tensors, f"{module}.{prefix}query_proj", settings, config)
                tensors[f"{module}.distance_queries.table"] = table * scale
            for name, tensor in _take_linear(tensors, f"{module}.query_proj", config).items():
                tensors[name] = tensor * scale


@dataclass(frozen=True)
class DebertaV1Input(DebertaInput):
    """Token ids of DeBERTa v1, which has one tensor for queries, keys and values, and a bias for two of them."""

    @override
    def sizes(self, config_json: CheckpointJson) -> dict[str, Any]:
        sizes = super().sizes(config_json)
        named = config_json.values["pos_att_type"]
        names = named.split("|") if isinstance(named, str) else named or ()
        if len(set(names)) < len(names):
            raise config_json.error("pos_att_type", "a term that is named twice would count twice in the scale")
        return sizes

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Turn the tensors of attention into those of DeBERTa v2, whose keys have biases too."""
        width = config.heads * config.head_dim
        for layer in range(config.layers):
            module = f"encoder.layer.{layer}.attention.self"
            fused = take_tensor(tensors, f"{module}.in_proj.weight", (3 * width, config.d_model))
            # The rows of a head are together: those of its query, then its key, then its value.
            parts = fused.view(config.heads, 3, config.head_dim, config.d_model)
            biases = {
                "query": take_tensor(tensors, f"{module}.q_bias", (width,)),
                "key": torch.zeros(width),
                "value": take_tensor(tensors, f"{module}.v_bias", (width,)),
            }
            for place, (name, bias) in enumerate(biases.items()):
                tensors[f"{module}.{name}_proj.weight"] = parts[:, place].reshape(width, config.d_model)
                tensors[f"{module}.{name}_proj.bias"] = bias
            for old, new in (("pos_proj", "pos_key_proj"), ("pos_q_proj", "pos_query_proj")):
                for kind in ("weight", "bias"):
                    if f"{module}.{old}.{kind}" in tensors:
                        tensors[f"{module}.{new}.{kind}"] = tensors.pop(f"{module}.{old}.{kind}")
            if config.distance_keys:
                tensors[f"{module}.pos_key_proj.bias"] = torch.zeros(width)
        super().fold_tensors(tensors, config_json, config)


def _fold_embeddings(tensors: dict[str, Tensor], settings: _Settings, config: EncoderConfig) -> None:
    """Project all embeddings to the width of the encoder, and add the vector of the only token type to the tokens."""
    rows = {_WORDS: config.vocabulary_size}
    if config.learns_positions:
        rows[_POSITIONS] = config.max_tokens
    else:
        # transformers ignores this tensor too.
        tensors.pop(_POSITIONS, None)
    if settings.types:
        rows[_TYPES] = settings.types
    width, projection = settings.embedding_width, None
    if width != config.d_model:
        projection = take_tensor(tensors, "embeddings.embed_proj.weight", (config.d_model, width))
    for name, count in rows.items():
        table = take_tensor(tensors, name, (count, width))
        tensors[name] = table if projection is None else table @ projection.T
    if settings.types and not config.token_types:
        tensors[_WORDS] = tensors[_WORDS] + tensors.pop(_TYPES)[0]


def _take_vectors(tensors: dict[str, Tensor], settings: _Settings, config: EncoderConfig) -> Tensor:
    """Remove the vectors of the buckets, and return one for each distance from key to query, [2M − 1, d_model].

    Without relative attention, there are no vectors, [0, d_model].
    """
    norm = None
    if settings.normalizes_vectors:
        norm = [take_tensor(tensors, f"encoder.LayerNorm.{name}", (config.d_model,)) for name in ("weight", "bias")]
    if not settings.is_relative:
        return torch.empty(0, config.d_model)
    span = settings.buckets or settings.farthest
    vectors = take_tensor(tensors, "encoder.rel_embeddings.weight", (2 * span, config.d_model))
    if norm:
        vectors = F.layer_norm(vectors, (config.d_model,), norm[0], norm[1], config.norm_eps)
    distances = torch.arange(1 - config.max_tokens, config.max_tokens)
    if settings.buckets:
        distances = _bucket(distances, settings.buckets // 2, settings.farthest)
    return vectors[(distances + span).clamp(0, 2 * span - 1)]


def _take_linear(tensors: dict[str, Tensor], module: str, config: EncoderConfig) -> dict[str, Tensor]:
    """Remove the weight and the bias of a projection to queries or keys, and return them by name."""
    width = config.heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"weight": (width, config.d_model), "bias": (width,)}
    return {f"{module}.{name}": take_tensor(tensors, f"{module}.{name}", shape) for name, shape in shapes.items()}


def _project(
    vectors: Tensor, tensors: dict[str, Tensor], module: str, settings: _Settings, config: EncoderConfig
) -> Tensor:
    """Return the vectors of each head, [H, 2M − 1, head_dim]; keep a projection that queries or keys share."""
    linear = _take_linear(tensors, module, config)
    if settings.shares_projections:
        tensors.update(linear)
    return F.linear(vectors, *linear.values()).view(len(vectors), config.heads, -1).transpose(0, 1).contiguous()


def _bucket(distances: Tensor, exact: int, farthest: int) -> Tensor:
    """Return the bucket of each distance, int64: itself up to `exact`, then ranges that grow by a constant factor."""
    sizes = distances.abs()
    # In float32 and in this order, as in transformers: the bounds of the ranges depend on rounding.
    ratios = torch.log(sizes.clamp(min=exact) / exact) / torch.log(torch.tensor((farthest - 1) / exact))
    ranges = torch.ceil(ratios * (exact - 1)) + exact
    return torch.where(sizes <= exact, distances, ranges.nan_to_num() * distances.sign()).long()


DEBERTA_V2 = Family(
    changes_unattended_rows=True,
    input=DebertaInput(),
    tensor_prefix="deberta.",
    size_fields=USUAL_SIZES,
    activation_field="hidden_act",
    module_names=BERT_MODULES,
    layer_prefix="encoder.layer",
    layer_module_names={
        **BERT_LAYER_MODULES,
        "attention.query": "attention.self.query_proj",
        "attention.key": "attention.self.key_proj",
        "attention.value": "attention.self.value_proj",
        "attention.distance_keys": "attention.self.distance_keys",
        "attention.distance_queries": "attention.self.distance_queries",
    },
    # Only the first layer has these modules.
    shared_module_names={"convolution.linear": "encoder.conv.conv", "convolution.norm": "encoder.conv.LayerNorm"},
    ignored_prefixes=("embeddings.position_ids", "pooler.", "cls.", "lm_predictions.", "mask_predictions."),
    default_values={
        "conv_kernel_size": 0,
        "conv_act": "tanh",
        "position_buckets": -1,
        "norm_rel_ebd": "none",
        "share_att_key": False,
    },
    sequence_head=SequenceHead("classifier", "pooler.dense", activation_field="pooler_hidden_act"),
)
DEBERTA = replace(
    DEBERTA_V2,
    input=DebertaV1Input(),
    required_fields={
        "talking_head": False,
        # transformers ignores these fields of v2.
        "conv_kernel_size": 0,
        "position_buckets": -1,
        "norm_rel_ebd": "none",
        "share_att_key": False,
    },
)
