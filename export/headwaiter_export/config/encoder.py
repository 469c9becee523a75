"""The configuration of an encoder, validated when it is created."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from headwaiter_export.config.after_pooling import PooledModule, output_width, resolve_modules
from headwaiter_export.config.choices import (
    CHOICES_OF_FIELDS,
    ROW_POOLINGS,
    Activation,
    DecoderInput,
    Mask,
    Norm,
    Pooling,
    Positions,
)
from headwaiter_export.config.decoder import DecoderConfig, decoder_of_target
from headwaiter_export.config.feed_forward_experts import FeedForwardExpertsConfig
from headwaiter_export.config.field_checks import ConfigError, check_choice, check_eps, check_size
from headwaiter_export.config.head import HeadConfig
from headwaiter_export.config.rotary_scaling import RotaryScaling, resolve_rotary
from headwaiter_export.config.vocabulary_head import VocabularyHeadConfig
from headwaiter_export.config.waveform import WaveformConfig

_SIZES_OR_ZERO = (
    "vocabulary_size token_types feature_width prefix_rows embedding_width d_ff head_dim value_dim distance_grid "
    "window experts active_experts convolution_kernel"
)

# Fields that only checkpoints have.
_PARTS = ("waveform", "feed_forward_experts", "vocabulary_head", "head")


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """A self-attention encoder. The defaults are those of BERT (https://arxiv.org/abs/1810.04805).

    Input and width:
        vocabulary_size: number of token ids, 0 to vocabulary_size − 1; 0 for an encoder of features.
        token_types: number of token types; the vector of a token's type is added to its embedding, as in BERT. 0 if all
            tokens have the same type, whose vector is then part of another tensor.
        mask_id: the token id of masked tokens, as in ESM-2 (https://doi.org/10.1126/science.ade2574): their embeddings
            are zeros, and the embeddings of the other tokens are divided by the share of other tokens in the sequence;
            positions are added afterwards. None if no token is masked.
        feature_width: width of a feature row; 0 for an encoder of token ids.
        feature_projection: whether a linear layer maps features to d_model; otherwise features are the first rows.
        d_model: width of a hidden row.
        waveform: the convolutions that turn features, the samples of a sound, into rows, in place of the linear layer;
            None for other features.
        embedding_width: width of the embeddings, which a linear layer maps to d_model (https://arxiv.org/abs/1909.11942,
            section 3.1); 0 stands for d_model, without the linear layer.

    Attention:
        heads: attention heads of a layer.
        head_dim: width of a head's queries and keys; 0 stands for d_model / heads.
        value_dim: width of a head's values and context; 0 stands for head_dim.
        learned_temperature: whether T in softmax(q kᵀ / T) is learned for each head (https://arxiv.org/abs/2112.13492);
            otherwise T = √head_dim.
        query_key_norm: whether a norm over head_dim, the same for all heads, follows the query projection, and another
            the key projection, before the rotation of rotary positions (https://arxiv.org/abs/2302.05442, section 2).
        query_bias: whether the query projection has a bias.
        key_bias: whether the key projection has a bias.
        value_bias: whether the value projection has a bias.
        output_projection: whether a linear layer W_O follows the concatenated heads.
        output_bias: whether W_O has a bias; becomes false without an output projection.
        experts: number of value projections, and of output projections, of which each token chooses some in each head,
            as in SwitchHead (https://arxiv.org/abs/2312.07987); they have no biases. 0 for one projection of each kind.
        active_experts: how many value and output projections a token chooses in each head; 0 stands for all experts.
        mask: which tokens a token attends to.
        distance_bias: whether each head adds to the score of a query and a key a number that depends only on the
            distance between them, as in T5 (https://arxiv.org/abs/1910.10683, section 2.1) and MPNet.
        distance_grid: the side W of a square grid of patches, whose rows follow a class row; 0 without a grid. With a
            grid, the distances of distance_bias are those between places: the patch in row r and column c has the place
            r (2W − 1) + c, so each shift by rows and columns is another distance, as in BEiT
            (https://arxiv.org/abs/2106.08254). The class row has the place −M, where M is the number of places.
        distance_keys, distance_queries: whether each head adds q · K / √head_dim to the score of a query q and a key k,
            or k · Q / √head_dim, where the vectors K and Q depend only on the distance between the tokens, as in
            DeBERTa (https://arxiv.org/abs/2006.03654, section 3.1).
        score_cap: c of c · tanh(s / c), which in self-attention replaces the scaled product s of each query and key
            before anything is added, as in Gemma 2 (https://arxiv.org/abs/2408.00118, section 2); 0 leaves products as
            they are.

    Layers, of which some may attend locally:
        layers: number of encoder layers; may be 0 before a decoder with a target.
        convolution_kernel: kernel size, an odd number, of a convolution over the tokens that reads the input of the
            first layer; its result, after `activation`, is added to the output of that layer, and a norm follows, as in
            DeBERTa v2 (https://arxiv.org/abs/2006.03654); 0 for no convolution.
        local_layers: numbers of the layers, from 0, in which a token attends only to tokens within `window`.
        window: largest distance from a token to the tokens that it attends to in local layers; a token thus attends to
            2 · window + 1 tokens, or with a causal mask to window + 1. Must be 0 without local layers.

    Feed-forward:
        d_ff: width between the two feed-forward layers, W_down activation(W_up x); 0 for attention alone.
        gated: whether a third layer gates the feed-forward block, W_down (activation(W_gate x) · W_up x), as in
            https://arxiv.org/abs/2002.05202.
        up_bias: whether W_up and W_gate have biases.
        down_bias: whether W_down has a bias.
        activation: activation function between the feed-forward layers, and after the convolution.
        feed_forward_experts: the layers with several feed-forward blocks, of which each token uses some; None if all
            layers have one.

    Residual sums and norms:
        residual: whether a block's input is added to its output, x + block(x).
        norm: place of a block's norm: norm(x + block(x)) for post (https://arxiv.org/abs/1706.03762),
            x + block(norm(x)) for pre (https://arxiv.org/abs/2002.04745), x + end_norm(block(norm(x))) for sandwich
            (https://arxiv.org/abs/2105.13290).
        first_norm: whether the attention block of the first layer has its norm, as those of all other layers.
        final_norm: whether a norm follows the last layer.
        embedding_norm: whether a norm follows the embeddings.
        rms_norm: whether every norm is RMSNorm, x / √(mean(x²) + ε) · weight (https://arxiv.org/abs/1910.07467);
            otherwise LayerNorm.
        norm_eps: ε of the norms; LayerNorm is (x − mean) / √(variance + ε).

    Sequences and positions:
        max_tokens: most tokens of a sequence.
        fixed_length: whether every sequence has exactly max_tokens tokens, because a position stands for a place in a
            grid of one size, as in models of images; a server then refuses all other lengths.
        prefix_rows: number of rows of zeros at the start of the features, to which the learned positions add the class,
            distillation and register tokens; a server refuses other values in these rows.
        positions: how the encoder knows a token's position; sinusoidal as in https://arxiv.org/abs/1706.03762, section
            3.5, rotary as in https://arxiv.org/abs/2104.09864, section 3.2, rotary_grid as in
            https://arxiv.org/abs/2508.10104, alibi as in https://arxiv.org/abs/2108.12409.
        pad_id: a token id without a position of its own: such tokens take the first learned position, and the position
            of any other token is 1 + the number of tokens before it that have another id than pad_id, as in RoBERTa.
            None if positions do not depend on ids.
        rotary_theta: base of the angles of rotary positions: position p rotates pair i by p / theta^(2i / head_dim).
        local_rotary_theta: the same base in local layers; 0 stands for rotary_theta.
        rotary_scaling: how these angles are scaled for long sequences; None if they are not. `from_dict` takes an
            object of fields.
        local_rotary_scaling: how they are scaled in local layers; None if they are not, whatever rotary_scaling is.
        rotary_float32: whether the angles of rotary positions are computed in float32, as in transformers' models after
            RoFormer; otherwise in float64. Position 8,000 has an error of up to 5e-4 in float32.
        rotary_float16: whether the frequencies 1 / theta^(2i / head_dim) of rotary positions are rounded to float16, as
            in checkpoints of ESM-2.

    Decoder:
        decoder: the decoder after the encoder, if there is one. `from_dict` takes a decoder of targets as an object of
            fields.

    Pooling, and what follows it:
        pooling: how the hidden rows of a sequence become one vector; attention pooling has the heads, the widths,
            the activation and the norm of a layer.
        concatenated: the poolings whose vectors follow one another if pooling is concatenated, in order.
        after_pooling: modules that transform the pooled vector, in order; `from_dict` takes them as objects of fields.
        row_modules: modules that transform each hidden row in the same way, after pooling and the head have read it.
        normalize: whether pooled vectors are scaled to unit length in the end.
        vocabulary_head: the head that makes pooled vectors of one number for each token id; its pooling is max. None
            for other models.

    Head:
        head: the head, if the encoder has one.

    Expansion of queries:
        expansion_id: the token id that fills up queries, as in ColBERT (https://arxiv.org/abs/2004.12832, section 3.2):
            no token attends to the run of this id at the end of a sequence. With local layers, only the last `window`
            tokens can be such a run. None if all tokens are attended to.

    Raises:
        ConfigError: a field is wrong; the message has the field, its value and the allowed values.
    """

    # Input and width
    vocabulary_size: int = 0
    token_types: int = 0
    mask_id: int | None = None
    feature_width: int = 0
    feature_projection: bool = True
    d_model: int
    waveform: WaveformConfig | None = None
    embedding_width: int = 0
    # Attention
    heads: int
    head_dim: int = 0
    value_dim: int = 0
    learned_temperature: bool = False
    query_key_norm: bool = False
    query_bias: bool = True
    key_bias: bool = True
    value_bias: bool = True
    output_projection: bool = True
    output_bias: bool = True
    experts: int = 0
    active_experts: int = 0
    mask: Mask = Mask.NONE
    distance_bias: bool = False
    distance_grid: int = 0
    distance_keys: bool = False
    distance_queries: bool = False
    score_cap: float = 0.0
    # Layers, of which some may attend locally
    layers: int
    convolution_kernel: int = 0
    local_layers: tuple[int, ...] = ()
    window: int = 0
    # Feed-forward
    d_ff: int
    gated: bool = False
    up_bias: bool = True
    down_bias: bool = True
    activation: Activation = Activation.GELU
    feed_forward_experts: FeedForwardExpertsConfig | None = None
    # Residual sums and norms
    residual: bool = True
    norm: Norm = Norm.POST
    first_norm: bool = True
    final_norm: bool = False
    embedding_norm: bool = True
    rms_norm: bool = False
    norm_eps: float = 1e-12
    # Sequences and positions
    max_tokens: int
    fixed_length: bool = False
    prefix_rows: int = 0
    positions: Positions = Positions.LEARNED
    pad_id: int | None = None
    rotary_theta: float = 10_000.0
    local_rotary_theta: float = 0.0
    rotary_scaling: RotaryScaling | None = None
    local_rotary_scaling: RotaryScaling | None = None
    rotary_float32: bool = False
    rotary_float16: bool = False
    # Decoder
    decoder: DecoderConfig | None = None
    # Pooling, and what follows it
    pooling: Pooling = Pooling.MEAN
    concatenated: tuple[Pooling, ...] = ()
    after_pooling: tuple[PooledModule, ...] = ()
    row_modules: tuple[PooledModule, ...] = ()
    normalize: bool = False
    vocabulary_head: VocabularyHeadConfig | None = None
    # Head
    head: HeadConfig | None = None
    # Expansion of queries
    expansion_id: int | None = None

    def __post_init__(self) -> None:
        for name, choices in CHOICES_OF_FIELDS.items():
            check_choice(self, name, choices)
        for name in ("d_model", "heads", "max_tokens"):
            check_size(name, getattr(self, name))
        check_size("layers", self.layers, least=0 if self.takes_target else 1)
        for name in _SIZES_OR_ZERO.split():
            check_size(name, getattr(self, name), least=0)
        if bool(self.vocabulary_size) == bool(self.feature_width):
            raise ConfigError(
                f"vocabulary_size is {self.vocabulary_size} and feature_width {self.feature_width}: set exactly one of "
                "them"
            )
        _check_flags(self)
        if self.token_types and not self.takes_tokens:
            raise ConfigError(f"token_types is {self.token_types}, but features have no types: set it to 0")
        if self.takes_tokens:
            object.__setattr__(self, "feature_projection", False)
        elif not self.feature_projection and self.feature_width != self.d_model:
            raise ConfigError(
                f"feature_projection is false, but feature_width is {self.feature_width} and d_model {self.d_model}: "
                "make the widths equal, or set feature_projection to true"
            )
        self._resolve_widths()
        if self.waveform is not None:
            self._check_waveform(self.waveform)
        _resolve_local_layers(self)
        _resolve_experts(self)
        if self.distance_bias and self.positions is Positions.ALIBI:
            raise ConfigError("distance_bias is true and positions is alibi: add the slopes of alibi to the table")
        if self.distance_grid:
            self._check_grid()
        if self.gated and not self.d_ff:
            raise ConfigError("gated is true and d_ff is 0: set gated to false, or d_ff to the width of the block")
        _resolve_poolings(self)
        if self.max_tokens < self.min_tokens:
            reason = "with a target" if self.takes_target else f"when mask is {self.mask}"
            raise ConfigError(f"max_tokens is {self.max_tokens}: it must be {self.min_tokens} or more {reason}")
        self._check_even_widths()
        check_eps("norm_eps", self.norm_eps)
        if self.convolution_kernel:
            self._check_convolution()
        if self.feed_forward_experts is not None:
            self._check_experts(self.feed_forward_experts)
        if type(self.score_cap) not in (int, float) or not 0 <= self.score_cap < float("inf"):
            raise ConfigError(f"score_cap is {self.score_cap!r}: it must be a finite number of at least 0")
        if self.pooling is Pooling.ATTENTION and self.width % self.heads:
            raise ConfigError(f"pooling is attention, and {self.heads} heads do not divide the width {self.width}")
        resolve_modules(self)
        resolve_rotary(self)
        if self.decoder is not None:
            self._check_decoder(self.decoder)
        if self.vocabulary_head is not None and not self._suits_vocabulary_head():
            raise ConfigError(
                "vocabulary_head needs token ids and the pooling max, and takes no after_pooling, no row_modules, no "
                "normalize and no decoder: change these fields"
            )
        if self.learned_temperature and self.query_key_norm:
            raise ConfigError("learned_temperature and query_key_norm are true: fold the temperatures into the norms")
        if self.normalize and self.pooling is Pooling.NONE:
            raise ConfigError("normalize is true with pooling 'none': choose a pooling, or set normalize to false")
        if self.prefix_rows and (self.takes_tokens or not self.learns_positions):
            raise ConfigError(
                f"prefix_rows is {self.prefix_rows}: set feature_width and learned positions, which hold the tokens of "
                "these rows, or set prefix_rows to 0"
            )
        if self.prefix_rows > self.max_tokens:
            raise ConfigError(f"prefix_rows is {self.prefix_rows}: it must be at most max_tokens, {self.max_tokens}")
        if self.mask_id is not None:
            _check_token_id("mask_id", self.mask_id, self)
            if self.decoder:
                raise ConfigError(f"mask_id is {self.mask_id}: it must be None with a decoder")
        if self.pad_id is not None:
            _check_token_id("pad_id", self.pad_id, self)
            if self.positions is not Positions.LEARNED:
                raise ConfigError(
                    f"pad_id is {self.pad_id}, but positions is {self.positions}: pad_id needs learned ones"
                )
        if self.expansion_id is not None:
            _check_token_id("expansion_id", self.expansion_id, self)
            if self.mask is Mask.SELF_EXCLUDING or self.decoder:
                raise ConfigError(
                    f"expansion_id is {self.expansion_id}: it must be None with a decoder or mask {self.mask}"
                )
        if self.pooling is Pooling.CLS and not self.takes_tokens and not self.learns_positions:
            raise ConfigError(
                f"pooling is cls, but features have no class token and positions are {self.positions.value!r}: choose "
                "another pooling, or learned positions, which can mark the first row as the class row"
            )

    def _resolve_widths(self) -> None:
        """Replace widths of 0 by their defaults, and check that all widths fit together."""
        if not self.embedding_width:
            object.__setattr__(self, "embedding_width", self.d_model)
        elif self.embedding_width != self.d_model and not self.takes_tokens:
            raise ConfigError(
                f"embedding_width is {self.embedding_width} and d_model {self.d_model}: make them equal for an encoder "
                "of features, which are mapped to d_model by feature_projection"
            )
        if not self.head_dim:
            if self.d_model % self.heads:
                raise ConfigError(f"heads is {self.heads}, which does not divide d_model {self.d_model}: set head_dim")
            object.__setattr__(self, "head_dim", self.d_model // self.heads)
        if not self.value_dim:
            object.__setattr__(self, "value_dim", self.head_dim)
        if not self.output_projection:
            object.__setattr__(self, "output_bias", False)
        if self.width == self.d_model:
            return
        widths = (
            f"{self.heads} heads of value_dim {self.value_dim} have width {self.width}, and d_model is {self.d_model}"
        )
        if self.residual:
            raise ConfigError(f"residual is true, but {widths}: set residual to false, or output_projection to true")
        if self.layers > 1:
            raise ConfigError(f"layers is {self.layers}, but {widths}: set layers to 1, or output_projection to true")

    def _check_grid(self) -> None:
        """Check that sequences consist of a class row and the patches of the grid, and that all rows attend to all."""
        rows = 1 + self.distance_grid**2
        wanted: dict[str, Any] = {"distance_bias": True, "prefix_rows": 1, "max_tokens": rows, "fixed_length": True}
        wanted |= {"mask": Mask.NONE, "local_layers": (), "distance_keys": False, "distance_queries": False}
        self._check_values(wanted, f"with distance_grid {self.distance_grid}")

    def _check_values(self, wanted: Mapping[str, Any], reason: str) -> None:
        """Check that fields have the only values that another field allows; `reason` names the other field."""
        for name, value in wanted.items():
            if (found := getattr(self, name)) != value:
                raise ConfigError(f"{name} is {found}: {reason}, set it to {value}".replace("None", "null"))

    def _check_convolution(self) -> None:
        """Check that the convolution has a middle, and that the first layer can have one."""
        if not self.convolution_kernel % 2:
            raise ConfigError(f"convolution_kernel is {self.convolution_kernel}: it must be an odd number, or 0")
        if self.width != self.d_model or not self.d_ff or self.decoder:
            raise ConfigError(
                f"convolution_kernel is {self.convolution_kernel}, which needs rows of width d_model, a feed-forward "
                "block and no decoder: change these fields, or set convolution_kernel to 0"
            )

    def _check_experts(self, experts: FeedForwardExpertsConfig) -> None:
        """Check the numbers of experts and of layers, and that the feed-forward blocks can have experts."""
        check_size("feed_forward_experts.experts", experts.experts)
        check_size("feed_forward_experts.active", experts.active)
        if experts.active > experts.experts or not set(experts.layers) <= set(range(self.layers)):
            raise ConfigError(
                f"feed_forward_experts has {experts.active} of {experts.experts} active experts in the layers "
                f"{list(experts.layers)}, and there are {self.layers} layers: correct these numbers"
            )
        if self.gated or not self.d_ff or self.decoder:
            raise ConfigError("feed_forward_experts needs d_ff, gated false and no decoder: change these fields")

    def _check_waveform(self, waveform: WaveformConfig) -> None:
        """Check that features have the width that the convolutions need."""
        if self.feature_width != waveform.window or not self.feature_projection:
            raise ConfigError(
                f"feature_width is {self.feature_width}: the convolutions need features of {waveform.window} samples, "
                "and feature_projection"
            )

    def _check_even_widths(self) -> None:
        """Check that pairs of a sine and a cosine fill the width of the positions."""
        embedding = "d_model" if self.embedding_width == self.d_model else "embedding_width"
        if self.positions is Positions.ROTARY_GRID and self.head_dim % 4:
            raise ConfigError(f"head_dim is {self.head_dim}: it must be a multiple of 4 when positions is rotary_grid")
        paired = {Positions.SINUSOIDAL: embedding, Positions.ROTARY: "head_dim"}.get(self.positions)
        if paired and getattr(self, paired) % 2:
            raise ConfigError(
                f"{paired} is {getattr(self, paired)}: it must be even when positions is {self.positions}"
            )

    def _suits_vocabulary_head(self) -> bool:
        others = self.after_pooling or self.row_modules or self.normalize or self.decoder
        return self.takes_tokens and self.pooling is Pooling.MAX and not others

    def _check_decoder(self, decoder: DecoderConfig) -> None:
        """Check the fields of a decoder, and that the encoder's rows have the width of the decoder's."""
        check_size("decoder.layers", decoder.layers)
        check_size("decoder.d_ff", decoder.d_ff, least=1 if decoder.self_attention else 0)
        if self.takes_tokens:
            _check_token_id("decoder.start_id", decoder.start_id, self)
        elif decoder.start_id is not None:
            raise ConfigError(f"decoder.start_id is {decoder.start_id}, but features have no ids: leave it out")
        if self.width != self.d_model or self.experts or (self.norm is Norm.NONE and not self.takes_target):
            norms = "" if self.takes_target else "norm to post or pre, "
            raise ConfigError(
                "a decoder has rows of width d_model, an output projection and no experts, and norms unless it has a "
                f"target: set {norms}experts to 0, and output_projection to true"
            )
        scores_one_row = self.head is not None and not self.head.per_token and len(self.head.poolings) == 1
        if decoder.input is DecoderInput.START and not scores_one_row:
            raise ConfigError("decoder.input is start: the first row of the decoder needs a head of one pooling")
        if self.takes_target:
            self._check_target(decoder)
        elif not self.takes_tokens or not decoder.self_attention or decoder.mask is not Mask.CAUSAL:
            raise ConfigError(
                f"decoder.input is {decoder.input}: set vocabulary_size, self_attention to true and mask to causal"
            )

    def _check_target(self, decoder: DecoderConfig) -> None:
        """Check what an encoder and a decoder with sequences of their own cannot have."""
        wanted = {
            "pooling": Pooling.NONE,
            "head": None,
            "waveform": None,
            "token_types": 0,
            "prefix_rows": 0,
            "fixed_length": False,
        }
        self._check_values(wanted, "with a target")
        for name, mask in (("mask", self.mask), ("decoder.mask", decoder.mask)):
            if mask is Mask.SELF_EXCLUDING:
                raise ConfigError(f"{name} is self_excluding: with a target it must be none or causal")
        if not decoder.d_ff and self.gated:
            raise ConfigError("gated is true and decoder.d_ff is 0: set gated to false")

    @property
    def decoder_stack(self) -> "EncoderConfig":
        """The configuration of the decoder's layers, as if they were an encoder; there must be a decoder."""
        assert self.decoder is not None
        layers, d_ff, mask = self.decoder.layers, self.decoder.d_ff, self.decoder.mask
        return replace(self, decoder=None, head=None, layers=layers, d_ff=d_ff, mask=mask, local_layers=(), window=0)

    @property
    def attention_layers(self) -> int:
        """Number of attention layers, without those of a decoder's first row."""
        if not self.decodes_rows or self.decoder is None:
            return self.layers
        return self.layers + self.decoder.layers * (1 + self.decoder.self_attention)

    @property
    def inner_width(self) -> int:
        """Sum of the widths d_ff of all layers that compute a row for each token."""
        decoder = self.decoder.layers * self.decoder.d_ff if self.decoder and self.decodes_rows else 0
        experts = self.feed_forward_experts
        added = len(experts.layers) * (experts.experts - 1) if experts else 0
        return (self.layers + added) * self.d_ff + decoder

    @property
    def decodes_rows(self) -> bool:
        """Whether a decoder computes hidden rows."""
        return self.decoder is not None and self.decoder.input is not DecoderInput.START

    @property
    def takes_target(self) -> bool:
        """Whether a sequence consists of a source and a target."""
        return self.decoder is not None and self.decoder.input is DecoderInput.TARGET

    @property
    def first_row_layers(self) -> int:
        """Number of attention layers in which each sequence has one query: those of a decoder's first row."""
        return self.decoder.layers if self.decoder is not None and not self.decodes_rows else 0

    @property
    def width(self) -> int:
        """Width of a layer's output: d_model, or without an output projection heads · value_dim."""
        return self.d_model if self.output_projection else self.heads * self.value_dim

    @property
    def gates_distances(self) -> bool:
        """Whether attention adds gated numbers of distances to the scores."""
        return self.waveform is not None and self.waveform.gates_distances

    @property
    def distance_places(self) -> tuple[int, ...]:
        """The place of each row, whose differences are the distances of distance_bias; empty for the row's position."""
        side = self.distance_grid
        if not side:
            return ()
        places = [row * (2 * side - 1) + column for row in range(side) for column in range(side)]
        return (-1 - places[-1], *places)

    @property
    def largest_distance(self) -> int:
        """The largest distance of distance_bias."""
        places = self.distance_places
        return places[-1] - places[0] if places else self.max_tokens - 1

    @property
    def multiplies_distances(self) -> bool:
        """Whether attention multiplies queries or keys with vectors of distances."""
        return self.distance_keys or self.distance_queries or self.gates_distances

    @property
    def convolution_values(self) -> int:
        """Largest number of values for each row that a graph holds at once in convolutions or experts."""
        if self.feed_forward_experts is not None:
            # Before and after the activation, and times the gates.
            return 3 * self.feed_forward_experts.experts * self.d_ff
        return self.waveform.live_values if self.waveform else self.convolution_kernel * self.d_model

    @property
    def pooled_width(self) -> int:
        """Width of a pooled vector after all modules; without pooling, of a hidden row after them."""
        if self.pooling is Pooling.NONE:
            return self.hidden_width
        if self.vocabulary_head:
            return self.vocabulary_size
        return output_width(self.after_pooling, self.pooling_width)

    @property
    def pools_patches(self) -> bool:
        """Whether a pooling of vectors, or one of the head, tells the first `prefix_rows` rows from the others."""
        used = {self.pooling, *self.concatenated, *(self.head.poolings if self.head else ())}
        return not used.isdisjoint((Pooling.PREFIX_MEAN, Pooling.PATCH_MEAN))

    @property
    def pooling_width(self) -> int:
        """Width of a pooled vector before all modules."""
        return self.width * max(1, len(self.concatenated))

    @property
    def hidden_width(self) -> int:
        """Width of a hidden row after all modules."""
        return output_width(self.row_modules, self.width)

    @property
    def min_tokens(self) -> int:
        """Fewest tokens of a sequence: 2 if a token cannot attend to itself, or if there is a target; else 1.

        If a pooling tells the model's own tokens from patches, there is a patch.
        """
        if self.pools_patches:
            return self.prefix_rows + 1
        return 2 if self.mask is Mask.SELF_EXCLUDING or self.takes_target else 1

    @property
    def learned_positions(self) -> int:
        """Number of learned positions: one for each token of the longest sequence, and one for pad_id."""
        return self.max_tokens + (self.pad_id is not None)

    @property
    def learns_positions(self) -> bool:
        """Whether the embeddings include a learned vector for each position."""
        return self.positions in (Positions.LEARNED, Positions.ROTARY_GRID)

    @property
    def chooses_experts(self) -> bool:
        """Whether a token uses only some of the experts, so that rounding errors can change the choice."""
        blocks = self.feed_forward_experts
        return self.active_experts < self.experts or (blocks is not None and blocks.active < blocks.experts)

    @property
    def takes_tokens(self) -> bool:
        """Whether sequences are token ids rather than features."""
        return self.vocabulary_size != 0

    @property
    def token_input(self) -> str:
        """Name of the graph input that holds the sequences."""
        return "input_ids" if self.takes_tokens else "features"

    @property
    def row_inputs(self) -> tuple[str, ...]:
        """Names of the graph inputs that hold the rows of the sequences: token ids and their types, or features."""
        return (self.token_input, "token_type_ids") if self.token_types else (self.token_input,)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "EncoderConfig":
        """Create a configuration from its fields, or raise ConfigError if a field is missing, unknown or wrong."""
        known = {each.name for each in fields(cls) if each.name not in _PARTS or values.get(each.name) is None}
        if unknown := sorted(values.keys() - known):
            raise ConfigError(f"unknown field {unknown[0]!r}: choose one of {', '.join(sorted(known))}")
        if missing := [each.name for each in fields(cls) if each.default is MISSING and each.name not in values]:
            raise ConfigError(f"field {missing[0]} is missing: set it")
        if values.get("decoder") is not None:
            values = {**values, "decoder": decoder_of_target(values["decoder"])}
        return cls(**values)


def _check_flags(config: Any) -> None:
    """Check that the fields of type bool are true or false."""
    for field in fields(config):
        if field.type is bool and not isinstance(getattr(config, field.name), bool):
            raise ConfigError(f"{field.name} is {getattr(config, field.name)!r}: it must be true or false")


def _check_token_id(name: str, token_id: Any, config: EncoderConfig) -> None:
    if type(token_id) is not int or not 0 <= token_id < config.vocabulary_size:
        raise ConfigError(f"{name} is {token_id!r}: it must be a token id, 0 to vocabulary_size - 1")


def _resolve_local_layers(config: Any) -> None:
    """Turn a list of local layers into a tuple, and check the layers and their window."""
    layers = config.local_layers
    if not isinstance(layers, (list, tuple)) or not all(
        type(each) is int and 0 <= each < config.layers for each in layers
    ):
        raise ConfigError(
            f"local_layers is {layers!r}: it must be a list of numbers of layers, 0 to {config.layers - 1}"
        )
    object.__setattr__(config, "local_layers", tuple(sorted(set(layers))))
    if config.window and not layers:
        raise ConfigError(f"window is {config.window} without local_layers: name these layers, or set window to 0")
    if config.window < 1 and layers and config.mask is Mask.SELF_EXCLUDING:
        raise ConfigError(f"window is {config.window}: it must be 1 or more when mask is {config.mask}")


def _resolve_poolings(config: Any) -> None:
    """Turn a list of concatenated poolings into a tuple, and check all poolings."""
    listed = config.concatenated
    known = {str(each): each for each in ROW_POOLINGS}
    if not isinstance(listed, (list, tuple)) or not all(isinstance(each, str) and each in known for each in listed):
        raise ConfigError(f"concatenated is {listed!r:.99}: it must be a list of {', '.join(known)}")
    if config.pooling is Pooling.CONCATENATED and len(listed) < 2:
        raise ConfigError(f"pooling is concatenated, and concatenated is {listed!r}: list two poolings or more")
    if config.pooling is not Pooling.CONCATENATED and listed:
        raise ConfigError(f"pooling is {config.pooling}, and concatenated is {listed!r}: leave concatenated out")
    object.__setattr__(config, "concatenated", tuple(known[each] for each in listed))
    if config.pools_patches and not (0 < config.prefix_rows < config.max_tokens and config.fixed_length):
        raise ConfigError(
            f"a pooling is prefix_mean or patch_mean, and prefix_rows is {config.prefix_rows}: it must be from 1 to "
            "max_tokens - 1, with fixed_length true"
        )


def _resolve_experts(config: Any) -> None:
    """Replace `active_experts` of 0 by all experts, and check that experts fit the other fields."""
    if config.active_experts > config.experts:
        raise ConfigError(f"active_experts is {config.active_experts}: it must be at most experts, {config.experts}")
    if config.experts and not config.output_projection:
        raise ConfigError(
            f"experts is {config.experts}, but output_projection is false: set it to true, because each head has this "
            "many output projections"
        )
    if config.experts:
        object.__setattr__(config, "active_experts", config.active_experts or config.experts)
        for name in ("value_bias", "output_bias"):
            object.__setattr__(config, name, False)
