"""The encoder in PyTorch, from token ids or features to pooled vectors.

The same modules compute the reference results and are traced into every graph; an attention layout tells them which
rows form a sequence. Shapes: R rows (one for each token or grid cell, as the layout arranges them), B sequences, N
tokens of the longest sequence, d = d_model. Rows of the last layer have `EncoderConfig.width`, which is mostly d.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError, WeightsError
from headwaiter_export.encoder.after_pooling import build_modules, merge_dense
from headwaiter_export.encoder.attention import LearnedTemperature
from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.attention_pooling import AttentionPooling
from headwaiter_export.encoder.decoder import Decoder
from headwaiter_export.encoder.embedding import Embedding
from headwaiter_export.encoder.head import Head
from headwaiter_export.encoder.layers import AttentionLayer, EncoderLayer
from headwaiter_export.encoder.norms import make_norm
from headwaiter_export.encoder.pooling import pool
from headwaiter_export.encoder.vocabulary_head import VocabularyHead

_POSITIONS = ("embedding.positions.table.weight", "decoder.embedding.positions.table.weight")


class Encoder(nn.Module):
    """A self-attention encoder: embedding, layers, pooling.

    Attributes:
        gives_rows: whether `forward` returns hidden rows; only modules of the caller may give vectors or logits alone.
    """

    gives_rows = True

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        layer = EncoderLayer if config.d_ff else AttentionLayer
        self.layers = nn.ModuleList(layer(config, number) for number in range(config.layers))
        self.norm = make_norm(config, config.width) if config.final_norm and config.layers else nn.Identity()
        self.decoder = Decoder(config) if config.decoder else None
        self.attention_pooling = AttentionPooling(config) if config.pooling is Pooling.ATTENTION else None
        self.after_pooling = build_modules(config.after_pooling, config.pooling_width)
        self.row_modules = build_modules(config.row_modules, config.width)
        self.vocabulary_head = VocabularyHead(config.vocabulary_head, config) if config.vocabulary_head else None
        self.head = Head(config.head, config) if config.head else None

    @classmethod
    def with_weights(cls, config: EncoderConfig, weights: Mapping[str, Tensor]) -> "Encoder":
        """Build an encoder from weights named as in `state_dict`, without copying them.

        Learned positions beyond max_tokens are dropped.

        Raises:
            ConfigError: max_tokens exceeds the number of learned positions.
            WeightsError: a tensor is missing, unknown, of the wrong shape or not finite; the message names the tensor.
        """
        with torch.device("meta"):
            encoder = cls(config)
        encoder.load_state_dict(_fitted_weights(weights, encoder.state_dict()), assign=True)
        return encoder.eval()

    @torch.no_grad()
    def fold_temperatures(self) -> "Encoder":
        """Return an encoder of equal results, with learned temperatures multiplied into the query weights."""
        if not self.config.learned_temperature:
            return self
        weights = self.state_dict()
        for name, module in self.named_modules():
            if isinstance(module, LearnedTemperature):
                del weights[f"{name}.temperature"]
                query = f"{name.removesuffix('temperature')}query"
                weights[f"{query}.weight"] = weights[f"{query}.weight"] * module.factors[:, None]
                if self.config.query_bias:
                    weights[f"{query}.bias"] = weights[f"{query}.bias"] * module.factors
        return Encoder.with_weights(replace(self.config, learned_temperature=False), weights)

    @torch.no_grad()
    def merge_dense(self) -> "Encoder":
        """Return an encoder of equal results, with consecutive Dense modules merged where that saves weights."""
        config, weights = merge_dense(self.config, self.state_dict())
        return self if config == self.config else Encoder.with_weights(config, weights)

    def forward(
        self,
        tokens: Tensor,
        layout: AttentionLayout,
        token_types: Tensor | None = None,
        target: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Encode token ids [R], with their token types [R] (None for type 0), or features [R, feature_width].

        If the decoder takes a target, `tokens` and `layout` are those of the sources, and `target` has the token ids or
        features of the targets.

        Returns:
            pooled: vectors before normalization, float32 [B, pooled_width]; None without pooling.
            hidden: rows [R, hidden_width], those of the decoder if it reads the text; with a target, the encoder's rows
                of the source and the decoder's rows of the target, R of both.
            logits: float32 [B, labels] or [R, labels]; None without a head.
        """
        x = self.encode(tokens, layout, token_types)
        if self.decoder is not None and self.config.takes_target:
            assert target is not None
            x = layout.join(x, self.decoder(self.embedding.tokens, self._cast(target), x, layout))
        elif self.decoder is not None and self.config.decodes_rows:
            x = self.decoder(self.embedding.tokens, tokens, x, layout)
        pooled: Tensor | None = None
        if self.vocabulary_head is not None:
            pooled = self.vocabulary_head(x, layout)
        elif self.attention_pooling is not None:
            pooled = self.after_pooling(self.attention_pooling(x, layout))
        elif self.config.pooling is not Pooling.NONE:
            poolings = self.config.concatenated or (self.config.pooling,)
            pooled = self.after_pooling(pool(x, layout, poolings, self.config.prefix_rows))
        hidden = self.row_modules(x.float()).to(x.dtype) if self.config.row_modules else x
        return pooled, hidden, self._logits(x, tokens, layout)

    def encode(self, tokens: Tensor, layout: AttentionLayout, token_types: Tensor | None = None) -> Tensor:
        """Return the rows [R, width] after the last layer of the encoder, for the arguments of `forward`."""
        tokens = self._cast(tokens)
        x = self.embedding(tokens, layout, token_types)
        if self.config.expansion_id is not None:
            layout = layout.attending_to(self._attended_lengths(tokens, layout, self.config.expansion_id))
        for layer in self.layers:
            x = layer(x, layout)
        normalized: Tensor = self.norm(x)
        return normalized

    def _cast(self, tokens: Tensor) -> Tensor:
        """Return features, which are float32, in the precision of the weights; token ids as they are."""
        return tokens if self.config.takes_tokens else tokens.to(next(self.parameters()).dtype)

    def _attended_lengths(self, tokens: Tensor, layout: AttentionLayout, expansion_id: int) -> Tensor:
        """Return the number of tokens of each sequence [B] that are attended to."""
        attended = _length_without(expansion_id, tokens, layout)
        # Each token has keys in its window: in a longer run, the tokens before the last `window` are attended to.
        least = layout.lengths - self.config.window if self.config.local_layers else 1
        return attended.maximum(torch.as_tensor(least))

    def _logits(self, x: Tensor, tokens: Tensor, layout: AttentionLayout) -> Tensor | None:
        """Return the logits of rows [R, width] of the last layer; None without a head."""
        head = self.config.head
        if head is None or self.head is None:
            return None
        if head.per_token:
            return layout.from_rows(self.head(x))
        if self.decoder is not None and not self.config.decodes_rows:
            vectors = self.decoder(self.embedding.tokens, None, x, layout)
        else:
            ends = None if head.pad_id is None else _length_without(head.pad_id, tokens, layout)
            vectors = pool(x, layout, head.poolings, self.config.prefix_rows, ends).to(x.dtype)
        logits: Tensor = self.head(vectors)
        return logits


def _length_without(token_id: int, tokens: Tensor, layout: AttentionLayout) -> Tensor:
    """Return the length of each sequence [B] without the run of an id at its end, at least 1."""
    ends = layout.pad(torch.where(tokens == token_id, 0, layout.positions + 1)[:, None])[..., 0]
    return torch.where(layout.token_mask, ends, 0).amax(1).clamp(min=1)


def _fitted_weights(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Cut the learned positions that no sequence needs, and check the names, shapes and values of all weights."""
    fitted = dict(weights)
    for name in (name for name in _POSITIONS if name in expected and name in weights):
        needed, found = len(expected[name]), len(weights[name])
        if found < needed:
            raise ConfigError(
                f"the configuration needs {needed} learned positions, but the weights have only {found}: reduce "
                "max_tokens"
            )
        fitted[name] = weights[name][:needed]
    unknown = sorted(fitted.keys() - expected.keys())
    if missing := [f"{name} {[*tensor.shape]}" for name, tensor in expected.items() if name not in fitted]:
        also = f", and have an unknown tensor {unknown[0]}" if unknown else ""
        raise WeightsError(
            f"the weights lack {', '.join(missing)}{also}: add the missing tensors, or change the configuration"
        )
    for name, tensor in expected.items():
        if fitted[name].shape != tensor.shape:
            raise WeightsError(
                f"tensor {name} has shape {[*fitted[name].shape]}, but the configuration requires {[*tensor.shape]}: "
                "change the tensor or the configuration"
            )
        if not fitted[name].isfinite().all():
            raise WeightsError(f"tensor {name} contains NaN or infinity: all weights must be finite")
    if unknown:
        raise WeightsError(
            f"tensor {unknown[0]} is not part of the configured encoder: remove it, or change the configuration"
        )
    return fitted
