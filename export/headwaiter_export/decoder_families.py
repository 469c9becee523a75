"""The families of checkpoints whose layers are those of decoders, and which give vectors of texts."""

from dataclasses import replace

from headwaiter_export.choices import Norm, Positions
from headwaiter_export.decoder_inputs import DecoderInput, MistralInput, Qwen3Input
from headwaiter_export.family import NO_BIASES, USUAL_SIZES, Family

LLAMA = Family(
    input=DecoderInput(theta=10_000.0),
    tensor_prefix="model.",
    size_fields=USUAL_SIZES,
    activation_field="hidden_act",
    module_names={"embedding.tokens": "embed_tokens", "norm": "norm"},
    layer_prefix="layers",
    layer_module_names={
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.query_norm": "self_attn.q_norm",
        "attention.key_norm": "self_attn.k_norm",
        "attention.output": "self_attn.o_proj",
        "attention_norm": "input_layernorm",
        "feed_forward.gate": "mlp.gate_proj",
        "feed_forward.up": "mlp.up_proj",
        "feed_forward.down": "mlp.down_proj",
        "feed_forward_norm": "post_attention_layernorm",
    },
    ignored_prefixes=("lm_head.",),
    boolean_fields={
        **dict.fromkeys(("query_bias", "key_bias", "value_bias", "output_bias"), "attention_bias"),
        **dict.fromkeys(("up_bias", "down_bias"), "mlp_bias"),
    },
    fixed_fields={
        "positions": Positions.ROTARY,
        "rotary_float32": True,
        "norm": Norm.PRE,
        "final_norm": True,
        "rms_norm": True,
        "embedding_norm": False,
        "gated": True,
    },
    norm_eps_field="rms_norm_eps",
    default_norm_eps=1e-6,
    default_values={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
)
_MISTRAL = replace(
    LLAMA,
    input=MistralInput(theta=10_000.0),
    boolean_fields={},
    fixed_fields={**LLAMA.fixed_fields, **NO_BIASES},
    default_values={"hidden_act": "silu", "num_key_value_heads": 8, "sliding_window": 4096},
    required_fields={"layer_types": None},
)
_QWEN3 = replace(
    LLAMA,
    input=Qwen3Input(theta=10_000.0),
    boolean_fields={name: field for name, field in LLAMA.boolean_fields.items() if field == "attention_bias"},
    fixed_fields={**LLAMA.fixed_fields, "up_bias": False, "down_bias": False, "query_key_norm": True},
    default_values={
        "hidden_act": "silu",
        "attention_bias": False,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
)
_EUROBERT = replace(LLAMA, input=DecoderInput(theta=10_000.0, causal=False), default_norm_eps=1e-5)

DECODER_FAMILIES: dict[str, Family] = {"llama": LLAMA, "mistral": _MISTRAL, "qwen3": _QWEN3, "eurobert": _EUROBERT}
