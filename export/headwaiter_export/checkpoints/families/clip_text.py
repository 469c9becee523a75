"""The encoders of texts of CLIP (https://arxiv.org/abs/2103.00020) and SigLIP (https://arxiv.org/abs/2303.15343)."""

from dataclasses import dataclass, replace

from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoints.families.family import USUAL_SIZES, Family, TokenInput
from headwaiter_export.checkpoints.families.images import SIGLIP_VISION
from headwaiter_export.checkpoints.json_files import CheckpointJson
from headwaiter_export.config.after_pooling import ModuleKind, PooledModule
from headwaiter_export.config.choices import Mask, Norm, Pooling
from headwaiter_export.config.encoder import EncoderConfig


@dataclass(frozen=True)
class ClipTextInput(TokenInput):
    """Token ids whose tables of vectors and positions are those of an encoder."""

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Leave the tensors as they are."""


def _projection(config_json: CheckpointJson, encoder_json: CheckpointJson) -> tuple[PooledModule, ...]:
    """Return the projection to the vectors that texts and images share, if the checkpoint has it."""
    if not any(name.endswith("WithProjection") for name in config_json.strings("architectures")):
        return ()
    return (PooledModule(kind=ModuleKind.DENSE, width=encoder_json.size("projection_dim"), bias=False),)


CLIP_TEXT = Family(
    input=ClipTextInput(has_types=False),
    tensor_prefix="text_model.",
    size_fields=USUAL_SIZES,
    activation_field="hidden_act",
    module_names={
        "embedding.tokens": "embeddings.token_embedding",
        "embedding.positions.table": "embeddings.position_embedding",
        "norm": "final_layer_norm",
        "after_pooling.0.linear": "text_projection",
    },
    layer_prefix=SIGLIP_VISION.layer_prefix,
    layer_module_names=SIGLIP_VISION.layer_module_names,
    ignored_prefixes=("embeddings.position_ids", "text_projection."),
    fixed_fields={"mask": Mask.CAUSAL, "norm": Norm.PRE, "final_norm": True, "embedding_norm": False},
    default_pooling=Pooling.LAST,
    own_modules=_projection,
    end_id_field="eos_token_id",
    # Configurations that were written before transformers 4.29 have this value, and another id in the tokenizer.
    largest_id_value=2,
    is_causal=(True,),
)


def _siglip_head(config_json: CheckpointJson, encoder_json: CheckpointJson) -> tuple[PooledModule, ...]:
    """Return the linear layer after SigLIP's pooling."""
    has_size = encoder_json.values.get("projection_size") is not None
    width = encoder_json.size("projection_size" if has_size else "hidden_size")
    return (PooledModule(kind=ModuleKind.DENSE, width=width),)


SIGLIP_TEXT = replace(
    CLIP_TEXT,
    module_names={**CLIP_TEXT.module_names, "after_pooling.0.linear": "head"},
    ignored_prefixes=("embeddings.position_ids", "head."),
    fixed_fields={name: value for name, value in CLIP_TEXT.fixed_fields.items() if name != "mask"},
    own_modules=_siglip_head,
    end_id_field="",
    largest_id_value=None,
    is_causal=(False,),
    fills_texts=True,
)
