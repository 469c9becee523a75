"""The supported families of checkpoints, by `model_type` in config.json."""

from headwaiter_export.checkpoints.families.audio import AST, WHISPER
from headwaiter_export.checkpoints.families.bart import BART
from headwaiter_export.checkpoints.families.beit import (
    BEIT,
    BEIT_OF_CLASS_ROW,
    DATA2VEC_VISION,
    DATA2VEC_VISION_OF_CLASS_ROW,
)
from headwaiter_export.checkpoints.families.bert import (
    ALBERT,
    BERT,
    DATA2VEC,
    DISTILBERT,
    ELECTRA,
    ERNIE,
    MEGATRON_BERT,
    MPNET,
    REMBERT,
    ROBERTA,
    ROFORMER,
    XLM_ROBERTA_XL,
)
from headwaiter_export.checkpoints.families.clip_text import CLIP_TEXT, SIGLIP_TEXT
from headwaiter_export.checkpoints.families.deberta import DEBERTA, DEBERTA_V2
from headwaiter_export.checkpoints.families.decoders import EUROBERT, LLAMA, MISTRAL, QWEN2, QWEN3
from headwaiter_export.checkpoints.families.esm import ESM
from headwaiter_export.checkpoints.families.family import Family
from headwaiter_export.checkpoints.families.gemma import GEMMA, GEMMA2, GEMMA3
from headwaiter_export.checkpoints.families.images import (
    CLIP,
    CLIP_VISION,
    DEIT,
    DINOV2,
    DINOV2_WITH_REGISTERS,
    DINOV3,
    SIGLIP,
    SIGLIP_VISION,
    VIT,
)
from headwaiter_export.checkpoints.families.jina_v2 import JINA_V2_CODE
from headwaiter_export.checkpoints.families.modernbert import MODERNBERT
from headwaiter_export.checkpoints.families.nomic_gte_jina import (
    GTE_OR_ITS_CODE,
    JINA_V3,
    JINA_V3_CODE,
    NEW,
    NOMIC_BERT,
    NOMIC_EXPERTS,
)
from headwaiter_export.checkpoints.families.t5 import T5, UMT5, with_sequence_head, with_token_head, with_words
from headwaiter_export.checkpoints.families.wav2vec2 import HUBERT, WAV2VEC2, WAVLM, with_ctc_head
from headwaiter_export.checkpoints.json_files import CheckpointJson

_T5 = {"t5": T5, "mt5": T5, "umt5": UMT5}
# Families of texts.
FAMILIES: dict[str, Family] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "xlm-roberta-xl": XLM_ROBERTA_XL,
    "camembert": ROBERTA,
    "data2vec-text": DATA2VEC,
    "ernie": ERNIE,
    "megatron-bert": MEGATRON_BERT,
    "rembert": REMBERT,
    "electra": ELECTRA,
    "mpnet": MPNET,
    "albert": ALBERT,
    "roformer": ROFORMER,
    "distilbert": DISTILBERT,
    "deberta": DEBERTA,
    "deberta-v2": DEBERTA_V2,
    "esm": ESM,
    "modernbert": MODERNBERT,
    "nomic_bert": NOMIC_BERT,
    "gte": GTE_OR_ITS_CODE,
    "new": NEW,
    "jina_embeddings_v3": JINA_V3,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "eurobert": EUROBERT,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    **_T5,
    "bart": BART,
    "clip_text_model": CLIP_TEXT,
    **dict.fromkeys(("siglip_text_model", "siglip2_text_model"), SIGLIP_TEXT),
}
# Families by `model_type` and architecture, for models that have other tensors with a head.
FAMILIES_WITH_HEADS: dict[tuple[str, str], Family] = {
    (name, f"{name.upper()}{kind}"): with_head(family)
    for name, family in _T5.items()
    for kind, with_head in (
        ("ForSequenceClassification", with_sequence_head),
        ("ForTokenClassification", with_token_head),
    )
} | {
    ("wav2vec2", "Wav2Vec2ForCTC"): with_ctc_head(WAV2VEC2),
    ("hubert", "HubertForCTC"): with_ctc_head(HUBERT),
    ("wavlm", "WavLMForCTC"): with_ctc_head(WAVLM),
}
# Families by `model_type`, for language models whose decoder scores words.
WORD_FAMILIES: dict[str, Family] = {name: with_words(family) for name, family in _T5.items()}
_JINA_V2_REPOSITORY = "jinaai/jina-bert-implementation--"
# BEiT and data2vec with use_mean_pooling false, which pool the class row.
_OF_CLASS_ROW = {"beit": BEIT_OF_CLASS_ROW, "data2vec-vision": DATA2VEC_VISION_OF_CLASS_ROW}
# Families of images and audio.
FEATURE_FAMILIES: dict[str, Family] = {
    "vit": VIT,
    "deit": DEIT,
    "audio-spectrogram-transformer": AST,
    "clip": CLIP,
    "clip_vision_model": CLIP_VISION,
    "beit": BEIT,
    "data2vec-vision": DATA2VEC_VISION,
    "dinov2": DINOV2,
    "dinov2_with_registers": DINOV2_WITH_REGISTERS,
    "dinov3_vit": DINOV3,
    "siglip": SIGLIP,
    "siglip_vision_model": SIGLIP_VISION,
    "whisper": WHISPER,
    "wav2vec2": WAV2VEC2,
    "hubert": HUBERT,
    "wavlm": WAVLM,
}


def family_of_fields(config_json: CheckpointJson) -> Family | None:
    """Return the family of a checkpoint whose model type belongs to another family too; None for other checkpoints.

    The fields name custom code, or how BEiT pools.
    """
    if config_json.values.get("model_type") in _OF_CLASS_ROW:
        pools_patches = config_json.flag("use_mean_pooling", default=True)
        return None if pools_patches else _OF_CLASS_ROW[config_json.values["model_type"]]
    values = config_json.values
    code = values.get("auto_map")
    if not code:
        return None
    if values.get("model_type") == "bert" and isinstance(code, dict):
        # Other code of Jina has classes of the same names.
        known = all(isinstance(name, str) and name.startswith(_JINA_V2_REPOSITORY) for name in code.values())
        return JINA_V2_CODE if known else None
    if values.get("model_type") == "nomic_bert" and "activation_function" in values:
        return None if values["activation_function"] in ("swiglu", "geglu") else NOMIC_EXPERTS
    is_jina = values.get("model_type") == "xlm-roberta" and values.get("position_embedding_type") == "rotary"
    return JINA_V3_CODE if is_jina else None
