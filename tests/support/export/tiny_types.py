"""Tiny configurations of the model types of transformers, made of the default values of their classes.

A field whose name is in `_SIZES` becomes small, in the configuration and in those inside it. `_CHANGES` has the fields
of types for which that does not suffice.
"""

from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig

VOCABULARY_SIZE = 99
_NAMES_OF_SIZES = {
    32: "hidden_size d_model embed_dim n_embd dim embedding_size emb_dim encoder_hidden_size decoder_hidden_size "
    "hidden_dim word_embed_proj_dim projection_dim projection_hidden_size out_hidden_size output_dim embed_size width "
    "model_dim d_embed text_hidden_size hidden_sizes embed_dims encoder_embed_dim lru_width d_inner condition_dim "
    "qformer_hidden_size decoder_hidden_dim mm_hidden_size vision_hidden_size fpn_hidden_size conv_hidden_size "
    "q_lora_rank kv_lora_rank image_size img_size entity_emb_size context_size audio_hidden_size",
    64: "intermediate_size d_ff encoder_ffn_dim decoder_ffn_dim ffn_dim n_inner ffn_hidden_size inner_dim "
    "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size feed_forward_size mlp_dim "
    "encoder_intermediate_size dense_intermediate_size moe_shared_expert_intermediate_size max_position_embeddings "
    "n_positions max_source_positions max_target_positions sliding_window n_ctx seq_length max_seq_len "
    "max_sequence_length hidden_size_per_layer_input intermediate_size_mlp",
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers "
    "num_decoder_layers encoder_num_layers decoder_num_layers depth num_blocks num_hidden_groups decoder_depth "
    "num_stacks vision_layers encoder_num_hidden_layers decoder_num_hidden_layers num_key_value_heads top_k "
    "num_local_experts_per_tok num_experts_per_tok decoder_num_key_value_heads encoder_num_key_value_heads moe_top_k "
    "t2u_encoder_layers t2u_decoder_layers speech_encoder_layers",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
    "encoder_num_attention_heads decoder_num_attention_heads num_experts num_local_experts n_routed_experts "
    "num_experts_total moe_num_experts",
    8: "head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim d_kv attention_head_dim d_head kv_channels patch_size "
    "rotary_dim",
    1: "depths n_group topk_group n_groups first_k_dense_replace",
    VOCABULARY_SIZE: "vocab_size entity_vocab_size vocab_size_per_layer_input",
}
_SIZES = {name: size for size, names in _NAMES_OF_SIZES.items() for name in names.split()}
# The parts of half of the turned numbers of a head of 8, by the share of its numbers that are turned.
_SECTIONS = {1.0: [2, 1, 1], 0.5: [1, 1, 0], 0.25: [1, 0, 0]}
_TURNED = {"rope_type": "default", "rope_theta": 1e4}
_EQUAL_HEADS = {"num_key_value_heads": 4}
_CONVOLUTIONS = {"conv_dim": [32] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_expand": 2, "mamba_n_groups": 1}
_CHANGES: dict[str, dict[str, Any]] = {
    "bamba": _MAMBA,
    "bit": {"num_groups": 4, "embedding_size": 32, "hidden_sizes": [32, 32, 32, 32]},
    "cosmos3_edge_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}},
    "data2vec-audio": _CONVOLUTIONS,
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "dots3_note_text": _EQUAL_HEADS,
    "esm": {"vocab_size": VOCABULARY_SIZE, "pad_token_id": 1, "mask_token_id": 4},
    "esmc": _EQUAL_HEADS,
    "funnel": {"block_sizes": [1, 1], "block_repeats": [1, 1], "num_decoder_layers": 1},
    "gemma3n_text": {
        "intermediate_size": [64, 64],
        "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": [0.0, 0.0],
    },
    "glm4v_moe_text": {"rope_parameters": {**_TURNED, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}},
    "glm4v_text": {"rope_parameters": {**_TURNED, "mrope_section": [2, 1, 1]}},
    "glm5_next_text": _EQUAL_HEADS,
    "glm_image_text": {"rope_parameters": {**_TURNED, "mrope_section": [2, 1, 1]}},
    "glm_ocr_text": {"rope_parameters": {**_TURNED, "mrope_section": [2, 1, 1]}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "granitemoehybrid": _MAMBA,
    "hiera": {"embed_dim": 32, "input_size": None, "image_size": [32, 32], "patch_size": [7, 7]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "hunyuan_vl_text": {"head_dim": 8},
    "hy_v4_vl_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}},
    "layoutlm": {"max_2d_position_embeddings": 64},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "llama4_text": {"intermediate_size_mlp": 64},
    "longcat_flash": {"ffn_hidden_size": 64, "expert_ffn_hidden_size": 32, "zero_expert_num": 2},
    "mamba2": {"num_heads": 8, "head_dim": 8, "expand": 2, "n_groups": 1, "state_size": 16},
    "ministral": {"head_dim": 8},
    "mobilebert": {"embedding_size": 16, "intra_bottleneck_size": 16, "num_feedforward_networks": 2},
    "nemotron": {"num_key_value_heads": 4, "head_dim": 8},
    "neomme": {"head_dim": 16},
    "reformer": {
        "axial_pos_embds_dim": [16, 16],
        "axial_pos_shape": [8, 8],
        "attn_layers": ["local", "lsh"],
        "num_buckets": 2,
        "attention_head_size": 8,
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
    },
    "unispeech": _CONVOLUTIONS,
    "unispeech-sat": _CONVOLUTIONS,
    "wav2vec2-conformer": _CONVOLUTIONS,
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "zamba": {"layer_types": ["mamba", "hybrid"]},
    "zamba2": {"layer_types": ["mamba", "hybrid"]},
}


def tiny_model(kind: str, most_weights: int) -> Any:
    """Return the base model of a type with random weights, in float32.

    Raises:
        ValueError: the model has more than `most_weights` weights.
    """
    config = _tiny(CONFIG_MAPPING[kind])
    with torch.device("meta"):
        weights = sum(each.numel() for each in transformers.AutoModel.from_config(config).parameters())
    if weights > most_weights:
        raise ValueError(f"the smallest one that the script can make has {weights / 1e6:.0f} million weights")
    torch.manual_seed(0)
    return transformers.AutoModel.from_config(_tiny(CONFIG_MAPPING[kind]), dtype=torch.float32).eval()


def _tiny(config_class: type[PreTrainedConfig]) -> PreTrainedConfig:
    """Return a configuration of small sizes."""
    default, aliases = config_class(), config_class.attribute_map
    values = {**default.to_dict(), **{name: getattr(default, name, None) for name in aliases}}
    inner = {name: getattr(default, name, None) for name in config_class.sub_configs}
    fields: dict[str, Any] = {
        name: _tiny(type(each)) for name, each in inner.items() if isinstance(each, PreTrainedConfig)
    }
    special = VOCABULARY_SIZE
    if values.get("qk_rope_head_dim"):
        fields |= _EQUAL_HEADS  # Latent attention has no groups.
    for name, value in values.items():
        if name in inner or aliases.get(name, name) in fields:
            continue
        if type(value) in (list, tuple) and name in _SIZES and all(type(each) is int for each in value):
            fields[aliases.get(name, name)] = [_SIZES[name]] * len(value)
        elif type(value) is int and value > 0 and name in _SIZES:
            fields[aliases.get(name, name)] = min(_SIZES[name], value)
        elif isinstance(value, dict) and "mrope_section" in value:
            section = _SECTIONS[value.get("partial_rotary_factor", 1.0)]
            fields[aliases.get(name, name)] = {**value, "mrope_section": section}
        elif type(value) is int and value >= VOCABULARY_SIZE and name.endswith(("_token_id", "_token_index")):
            special -= 1
            fields[name] = 0 if name == "pad_token_id" else special
    return config_class(**{**fields, **_CHANGES.get(config_class.model_type, {})})
