"""What a family of checkpoints is: its input, and its names for configuration fields and tensors.

The other files of this folder have the families, each beside its inputs, and `model_types.py` lists them all.
`plan.py` translates the names of fields into those of EncoderConfig, and `encoder_weights.py` translates the names of
tensors into those of `Encoder.state_dict()`.

Headwaiter's encoders have one table of positions, token types only if the model takes pairs of texts, and one linear
layer on rows of features. Checkpoints have more tensors at their input; `fold_tensors` turns these into the tensors of
an encoder.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoints.activations import ACTIVATIONS
from headwaiter_export.checkpoints.families.config_defaults import class_aliases, class_defaults
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.checkpoints.weights import take_tensor
from headwaiter_export.config.after_pooling import PooledModule
from headwaiter_export.config.choices import Activation, Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.head import HeadActivation

# The names of the sizes in most families, for `size_fields`.
USUAL_SIZES: dict[str, str] = {
    "d_model": "hidden_size",
    "heads": "num_attention_heads",
    "layers": "num_hidden_layers",
    "d_ff": "intermediate_size",
}
# The fields of layers without biases, for `fixed_fields`.
NO_BIASES: dict[str, bool] = dict.fromkeys(
    ("query_bias", "key_bias", "value_bias", "output_bias", "up_bias", "down_bias"), False
)
# The sizes of an encoder's input, which most families have.
_INPUT_SIZES = ("vocab_size", "max_position_embeddings")
_POSITIONS = "embeddings.position_embeddings"
_TYPES = "embeddings.token_type_embeddings.weight"


class Input(Protocol):
    """What a family takes: token ids, patches of pictures, or frames of sounds."""

    def sizes(self, config_json: CheckpointJson) -> Mapping[str, Any]:
        """Read the sizes of the input, named as in EncoderConfig."""

    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Turn the tensors at the input of a checkpoint into those of an encoder."""


@dataclass(frozen=True)
class SequenceHead:
    """The head of a family that scores each sequence.

    Attributes:
        output: module of the linear layer that computes the logits.
        dense: module of the linear layer before it; empty for a head of one linear layer.
        activation: activation between the two; None for the activation that config.json names.
        activation_field: the field that names the activation; empty for the field of the feed-forward layers.
        norm: module of the norm before `output`; empty for a head without a norm.
        poolings: how the rows of a sequence become the vector that the head scores, see `HeadConfig.poolings`.
        pooling_field: field of config.json that names the only pooling; empty if the poolings are always `poolings`.
        bias: whether `output` has a bias where it scores sequences.
        bias_field: field of config.json that says whether `output` has a bias where it scores tokens; empty if it
            always has.
        scores_tokens: whether the head that scores each token has the same modules; otherwise it is one linear layer,
            "classifier".
        finds_answers: whether the head that scores each token as the start and the end of an answer has the module
            "qa_outputs" or, with `scores_tokens`, the same modules.
        skips_padding: whether the head scores the last token that is no padding token.
    """

    output: str
    dense: str = ""
    activation: HeadActivation | None = None
    activation_field: str = ""
    norm: str = ""
    poolings: tuple[Pooling, ...] = (Pooling.CLS,)
    pooling_field: str = ""
    bias: bool = True
    bias_field: str = ""
    scores_tokens: bool = False
    finds_answers: bool = True
    skips_padding: bool = False


@dataclass(frozen=True)
class VocabularyNames:
    """The head of a family's masked language model.

    Attributes:
        dense: module of the first linear layer.
        norm: module of the norm after its activation.
        output: module of the linear layer that computes the logits; its weights may be the vectors of the tokens.
        bias: tensor of its bias, which may have the name of `output` instead.
        activation: activation after the first layer; None for the activation that config.json names.
        activation_field: field that names the activation; empty for the field of the feed-forward layers.
    """

    dense: str
    norm: str
    output: str
    bias: str
    activation: HeadActivation | None = None
    activation_field: str = ""


# Fields of config.json that describe the head of the whole model.
_HEAD_FIELDS = ("architectures", "id2label", "num_labels", "problem_type", "sentence_transformers")
# The head that transformers gives an encoder with a decoder: it scores the last row of the decoder.
DECODER_HEAD = SequenceHead(
    "classification_head.out_proj", "classification_head.dense", HeadActivation.TANH, poolings=(Pooling.LAST,)
)


@dataclass(frozen=True, kw_only=True)
class TensorNames:
    """The checkpoint's names for the modules of a stack of layers, by Headwaiter's names.

    Attributes:
        module_names: modules outside the layers.
        layer_prefix: name of a layer without its number.
        shared_module_names: modules that all layers share.
        layer_module_names: modules inside a layer.
    """

    module_names: Mapping[str, str]
    layer_prefix: str
    layer_module_names: Mapping[str, str]
    shared_module_names: Mapping[str, str] = field(default_factory=dict)

    def tensor_name(self, name: str) -> str:
        """Return the checkpoint's name for a tensor of `Encoder.state_dict()` or `Decoder.state_dict()`."""
        module, _, kind = name.rpartition(".")
        if module.startswith("layers."):
            _, number, part = module.split(".", 2)
            if part in self.shared_module_names:
                return f"{self.shared_module_names[part]}.{kind}"
            return f"{self.layer_prefix}.{number}.{self.layer_module_names[part]}.{kind}"
        return f"{self.module_names[module]}.{kind}"


@dataclass(frozen=True, kw_only=True)
class Family(TensorNames):
    """The names of one family. In mappings, the keys are Headwaiter's names and the values are the checkpoint's names.

    Attributes, besides those of `TensorNames`:
        input: the encoder's input.
        tensor_prefix: prefix of the encoder's tensors in a checkpoint that also has a head.
        outer_prefix: prefix that all tensors may have, before `tensor_prefix`.
        size_fields: integers of EncoderConfig, and their fields in config.json.
        optional_size_fields: integers of EncoderConfig, and their fields in config.json, which may be absent.
        activation_field: field of config.json that names the activation.
        decoder_names: names of the tensors of the decoder; None for a family without a decoder.
        ignored_prefixes: prefixes of tensors that do not affect hidden rows.
        ignored_suffixes: suffixes of tensors that follow from config.json, which older checkpoints have.
        boolean_fields: booleans of EncoderConfig, and their optional fields in config.json.
        fixed_fields: fields of EncoderConfig that have the same value in the whole family.
        default_pooling: pooling of a checkpoint that names no pooling.
        norm_eps: epsilon of the norms if the family ignores layer_norm_eps in config.json, otherwise None.
        norm_eps_field: field of config.json that holds the epsilon of the norms.
        required_fields: fields of config.json that have only one supported value.
        layer_scales: modules inside a layer, and the tensors by which their outputs are multiplied (LayerScale).
        config_fields: fields of config.json that may hold the encoder's configuration as an object; the first that is
            present counts. Empty if config.json itself is the configuration.
        config_type: model type in transformers whose configuration has the fields of the family; empty for the type in
            config.json.
        has_default_sizes: whether the configuration may leave out the sizes of the encoder.
        default_values: values of fields that the configuration may leave out; they replace those of its class in
            transformers.
        sequence_head: names of the head of sequence classification; None if the export does not know the head.
        vocabulary_head: names of the head of the masked language model; None if the export does not know the head.
        activations: activations by their names in `activation_field`.
        custom_classes: prefix of the classes that auto_map may name, whose code computes the same; empty if none does.
        has_adapters: whether weights may have adapters of several tasks beside them, see `merge_adapter`.
        translate: function that translates the configuration of this code into the fields of the family.
        is_causal: supported values of the field is_causal, which transformers reads in all families.
        end_id_field: field of config.json that has the id of the token at the end of texts, whose row is pooled or
            scored; empty if the family pools or scores no such row.
        largest_id_value: a value of this field that stands for the largest id of the tokenizer.
        fills_texts: whether padding tokens fill up texts to their maximum, and all tokens attend to them.
        changes_unattended_rows: whether transformers computes another row than the graphs for a token that no token
            attends to: the token attends to nothing, or its embedding is zero.
        read_stored: function that reads settings that only tensors hold, removes these tensors, and returns the changed
            configuration.
        own_modules: function that returns the modules after the family's own pooling, given config.json and the part of
            it that is the encoder's configuration.
    """

    input: Input
    tensor_prefix: str
    size_fields: Mapping[str, str]
    activation_field: str
    ignored_prefixes: tuple[str, ...]
    ignored_suffixes: tuple[str, ...] = ()
    boolean_fields: Mapping[str, str] = field(default_factory=dict)
    fixed_fields: Mapping[str, Any] = field(default_factory=dict)
    outer_prefix: str = ""
    default_pooling: Pooling = Pooling.MEAN
    norm_eps: float | None = None
    norm_eps_field: str = "layer_norm_eps"
    required_fields: Mapping[str, object] = field(default_factory=dict)
    layer_scales: Mapping[str, str] = field(default_factory=dict)
    optional_size_fields: Mapping[str, str] = field(default_factory=dict)
    config_fields: tuple[str, ...] = ()
    config_type: str = ""
    has_default_sizes: bool = False
    default_values: Mapping[str, Any] = field(default_factory=dict)
    sequence_head: SequenceHead | None = None
    vocabulary_head: VocabularyNames | None = None
    activations: Mapping[str, Activation] = field(default_factory=lambda: ACTIVATIONS)
    custom_classes: str = ""
    has_adapters: bool = False
    end_id_field: str = ""
    largest_id_value: int | None = None
    is_causal: tuple[bool, ...] = (False,)
    decoder_names: TensorNames | None = None
    fills_texts: bool = False
    changes_unattended_rows: bool = False
    translate: Callable[[CheckpointJson], CheckpointJson] = lambda config_json: config_json
    read_stored: Callable[[dict[str, Tensor], EncoderConfig], EncoderConfig] = lambda _, config: config
    own_modules: Callable[[CheckpointJson, CheckpointJson], tuple[PooledModule, ...]] = lambda *_: ()

    def encoder_json(self, config_json: CheckpointJson) -> CheckpointJson:
        """Return the configuration of the encoder in config.json, with default values for missing fields.

        Raises:
            CheckpointError: the configuration is not an object, a field has two values, or its code has a value that
                the family lacks.
        """
        model_type = self.config_type or config_json.values["model_type"]
        config_json = self.translate(config_json).with_aliases(class_aliases(model_type))
        named = [name for name in self.config_fields if config_json.values.get(name) is not None]
        if named and not isinstance(config_json.values[named[0]], dict):
            raise config_json.error(named[0], "it must be an object")
        values = config_json.values[named[0]] if named else {} if self.config_fields else config_json.values
        if self.config_fields:
            # The part that describes the encoder does not describe the head.
            of_head = {name: config_json.values[name] for name in _HEAD_FIELDS if name in config_json.values}
            values = {name: value for name, value in values.items() if name not in _HEAD_FIELDS} | of_head
        defaults = {**class_defaults(model_type, *self.config_fields[-1:]), **self.default_values}
        if not self.has_default_sizes:
            sizes = {*_INPUT_SIZES, *self.size_fields.values()} - self.default_values.keys()
            defaults = {name: value for name, value in defaults.items() if name not in sizes}
        return replace(config_json, values={**defaults, **values})

    @override
    def tensor_name(self, name: str) -> str:
        if self.decoder_names is not None and name.startswith("decoder."):
            return self.decoder_names.tensor_name(name.removeprefix("decoder."))
        return super().tensor_name(name)


@dataclass(frozen=True)
class TokenInput:
    """Token ids, all of token type 0 unless the model takes pairs of texts.

    Attributes:
        positions_follow_padding: whether the padding token has no position, and the first position is its id + 1, as in
            fairseq.
        has_types: whether the family has token types.
    """

    positions_follow_padding: bool = False
    has_types: bool = True

    def sizes(self, config_json: CheckpointJson) -> dict[str, Any]:
        """Read the sizes of the input and the fields of its positions, named as in EncoderConfig."""
        sizes = {"vocabulary_size": config_json.size("vocab_size")}
        positions = config_json.size("max_position_embeddings")
        if not self.positions_follow_padding:
            return {**sizes, "max_tokens": positions}
        pad_id = config_json.size("pad_token_id", least=0)
        return {**sizes, "max_tokens": positions - pad_id - 1, "pad_id": pad_id}

    def token_types(self, config_json: CheckpointJson) -> int:
        """Return the number of token types; 0 if all tokens have the same type."""
        types = config_json.size("type_vocab_size", least=0) if self.has_types else 0
        return types if types > 1 else 0

    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Remove the unused rows of the position table, and add the vector of the only token type to the others."""
        name, unused = f"{_POSITIONS}.weight", config.pad_id or 0
        table = take_tensor(tensors, name, (unused + config.learned_positions, config.embedding_width))[unused:]
        tensors[name] = with_only_type(table, tensors, config) if self.has_types else table


def keep_shared_words(tensors: dict[str, Tensor], shared: str, copies: Iterable[str]) -> None:
    """Remove the copies of a table of tokens that several parts of a model share; checkpoints may have any of them.

    Raises:
        CheckpointError: a copy differs from the table.
    """
    for name in copies:
        words = tensors.pop(name, None)
        if words is not None and not torch.equal(tensors.setdefault(shared, words), words):
            raise CheckpointError(f"tensors {shared} and {name} differ: the export supports one table for both")


def with_only_type(table: Tensor, tensors: dict[str, Tensor], config: EncoderConfig) -> Tensor:
    """Return a table of vectors [n, width] plus the vector of token type 0, unless tokens have other types too."""
    if _TYPES not in tensors or config.token_types:
        return table
    types = tensors[_TYPES]
    rows = max(1, len(types)) if types.ndim else 1
    return table + take_tensor(tensors, _TYPES, (rows, table.shape[1]))[0]
