"""A tiny random checkpoint of each supported `model_type`, and the difference of its graph to `transformers`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.bundle.graphs import chosen_plans
from headwaiter_export.checkpoints.families.model_types import FAMILIES, FAMILIES_WITH_HEADS, FEATURE_FAMILIES
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.packing import pack
from tests.support.checkpoints import bert_hidden
from tests.support.export.family_checkpoints import DEBERTA_V3, SIZES, save_family
from tests.support.export.feature_checkpoints import draw_input, expected_hidden, input_rows, save_feature_model
from tests.support.export.hub_checkpoints import save_jina, save_jina_v2, save_new, save_nomic, save_nomic_experts
from tests.support.oracle import Array

WINDOW = 5
_ONE = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1) | {"pad_token_id": 0}
# transformers has no class for a head of tokens.
_WITHOUT_TOKEN_HEADS = ("Gemma3", "Bart")
_GROUPED = {"num_key_value_heads": 2}
_ESM = {"pad_token_id": 1, "mask_token_id": 4, "token_dropout": True}
_T5 = {
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "n_positions": 70,
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 40,
    "feed_forward_proj": "gated-gelu",
    "decoder_start_token_id": 0,
}


@dataclass(frozen=True)
class Example:
    """A checkpoint of one family.

    Attributes:
        label: name of the family, for people.
        model_types: values of `model_type` in config.json that the family has.
        known: checkpoints of the family on the Hugging Face hub.
        name: name of the classes of `transformers`, without "Config" and "Model".
        settings: fields of the configuration, besides the usual sizes.
        kind: end of the name of the model class.
        config_class: name of the configuration class; empty for the name with "Config".
        save: saves the checkpoint, in place of the four fields before.
        takes_heads: whether the export reads the heads of the model type in this layout.
    """

    label: str
    model_types: tuple[str, ...]
    known: tuple[str, ...]
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "Model"
    config_class: str = ""
    save: Callable[[Path], torch.nn.Module] | None = None
    takes_heads: bool = True

    @property
    def config(self) -> str:
        """The name of the configuration class."""
        return self.config_class or f"{self.name}Config"

    @property
    def takes_features(self) -> bool:
        """Whether the family takes images or audio."""
        return self.model_types[0] in FEATURE_FAMILIES

    @property
    def heads(self) -> str:
        """The heads that the export takes, for people."""
        if not self.takes_heads:
            return ""
        family = {**FAMILIES, **FEATURE_FAMILIES}[self.model_types[0]]
        if family.sequence_head is None and self.model_types[0] not in {name for name, _ in FAMILIES_WITH_HEADS}:
            return ""
        if (self.model_types[0], f"{self.name}ForCTC") in FAMILIES_WITH_HEADS:
            return "sequence, CTC"
        if self.takes_features:
            return "sound" if self.name == "AST" else "image"
        return "sequence" if self.name in _WITHOUT_TOKEN_HEADS else "sequence, token"

    def save_in(self, folder: Path) -> Any:
        """Save the checkpoint in a folder, and return its model."""
        if self.save:
            return self.save(folder)
        if self.takes_features:
            return save_feature_model(folder, self.name, self.kind, **self.settings)
        return save_family(folder, self.name, self.kind, self.config_class, **self.settings)

    def read(self, folder: Path) -> tuple[Encoder, list[Array], list[Array]]:
        """Save the checkpoint in a folder; return its encoder, sequences, and their hidden rows in `transformers`.

        The lengths of the sequences are 1, 2, near the window, and the maximum. A model of images or spectrograms has
        one length, and one of sounds has three.
        """
        model = self.save_in(folder)
        encoder = read_checkpoint(folder, Pooling.NONE).encoder
        sequences, expected = (_images if self.takes_features else _texts)(model, encoder.config)
        return encoder, sequences, expected

    def difference(self, folder: Path) -> float:
        """Return the largest difference of hidden rows of the served graph to `transformers`, divided by their scale.

        The sequences run alone and together.
        """
        encoder, sequences, expected = self.read(folder)
        export_bundle(encoder, None, folder / "bundle", "example", plans=chosen_plans(["packed-cpu"], ["fp32"]))
        # As a server opens it, with all its checks of the bundle.
        graph = open_model(folder / "bundle", "cpu", "fp32", threads=1).graph
        pairs = [([ids], rows) for ids, rows in zip(sequences, expected, strict=True)]
        pairs.append((sequences, np.concatenate(expected)))
        return max(relative_difference(graph.run(pack(batch), hidden=True).hidden, rows) for batch, rows in pairs)


def _texts(model: transformers.PreTrainedModel, config: Any) -> tuple[list[Array], list[Array]]:
    lengths = (1, 2, 3, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 1, config.max_tokens)
    sequences = [np.random.default_rng(n).integers(0, SIZES["vocab_size"], n) for n in lengths]
    return sequences, [bert_hidden(model, ids) for ids in sequences]


def _images(model: transformers.PreTrainedModel, config: Any) -> tuple[list[Array], list[Array]]:
    inputs = [draw_input(model, seed) for seed in range(3)]
    return [input_rows(model, each, config.prefix_rows) for each in inputs], [expected_hidden(model, i) for i in inputs]


def relative_difference(actual: Array | None, expected: Array) -> float:
    """Return the largest difference, divided by the largest expected value."""
    assert actual is not None
    assert actual.shape == expected.shape
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


EXAMPLES = [
    Example("BERT", ("bert",), ("sentence-transformers/all-MiniLM-L6-v2", "BAAI/bge-base-en-v1.5"), "Bert"),
    Example("RoBERTa", ("roberta",), ("sentence-transformers/all-distilroberta-v1",), "Roberta"),
    Example(
        "XLM-RoBERTa",
        ("xlm-roberta",),
        ("BAAI/bge-m3", "BAAI/bge-reranker-v2-m3", "intfloat/multilingual-e5-base"),
        "XLMRoberta",
    ),
    Example("XLM-RoBERTa-XL", ("xlm-roberta-xl",), ("facebook/xlm-roberta-xl",), "XLMRobertaXL"),
    Example("CamemBERT", ("camembert",), ("dangvantuan/sentence-camembert-base",), "Camembert"),
    Example("DistilBERT", ("distilbert",), ("sentence-transformers/msmarco-distilbert-base-v4",), "DistilBert"),
    Example("MPNet", ("mpnet",), ("sentence-transformers/all-mpnet-base-v2",), "MPNet"),
    Example("ELECTRA", ("electra",), ("cross-encoder/ms-marco-electra-base",), "Electra", {"embedding_size": 12}),
    Example(
        "ALBERT", ("albert",), ("sentence-transformers/paraphrase-albert-small-v2",), "Albert", {"embedding_size": 12}
    ),
    Example("RoFormer", ("roformer",), ("junnyu/roformer_chinese_base",), "RoFormer"),
    Example("ERNIE, without task types", ("ernie",), ("nghuyong/ernie-2.0-base-en",), "Ernie"),
    Example("MegatronBERT", ("megatron-bert",), ("nvidia/megatron-bert-uncased-345m",), "MegatronBert"),
    Example("RemBERT", ("rembert",), ("google/rembert",), "RemBert", {"input_embedding_size": 12}),
    Example("data2vec (text)", ("data2vec-text",), ("facebook/data2vec-text-base",), "Data2VecText"),
    Example(
        "DeBERTa v1",
        ("deberta",),
        ("microsoft/deberta-base", "microsoft/deberta-large-mnli"),
        "Deberta",
        # Distances of 9 and more have the same vector.
        {
            "max_position_embeddings": 70,
            "relative_attention": True,
            "max_relative_positions": 9,
            "pos_att_type": ["c2p", "p2c"],
            "position_biased_input": False,
        },
    ),
    Example(
        "DeBERTa v2",
        ("deberta-v2",),
        ("microsoft/deberta-v2-xlarge-mnli",),
        "DebertaV2",
        {**DEBERTA_V3, "conv_kernel_size": 3, "conv_act": "gelu"},
    ),
    Example(
        "DeBERTa v3",
        ("deberta-v2",),
        ("microsoft/deberta-v3-base", "mixedbread-ai/mxbai-rerank-base-v1"),
        "DebertaV2",
        DEBERTA_V3,
    ),
    Example(
        "ESM-1b (proteins)",
        ("esm",),
        ("facebook/esm1b_t33_650M_UR50S",),
        "Esm",
        {**_ESM, "emb_layer_norm_before": True},
    ),
    Example(
        "ESM-2 (proteins)",
        ("esm",),
        ("facebook/esm2_t12_35M_UR50D", "facebook/esm2_t33_650M_UR50D"),
        "Esm",
        {**_ESM, "position_embedding_type": "rotary"},
    ),
    Example(
        "ModernBERT",
        ("modernbert",),
        ("answerdotai/ModernBERT-base", "Alibaba-NLP/gte-modernbert-base"),
        "ModernBert",
        {"local_attention": 2 * WINDOW, "max_position_embeddings": 40, **_ONE},
    ),
    Example("Nomic BERT", ("nomic_bert",), (), "NomicBert", {"pad_token_id": 0}),
    Example("Nomic BERT, layout of its code", ("nomic_bert",), ("nomic-ai/nomic-embed-text-v1.5",), save=save_nomic),
    Example(
        "Nomic BERT with experts, layout of its code",
        ("nomic_bert",),
        ("nomic-ai/nomic-embed-text-v2-moe",),
        save=save_nomic_experts,
        takes_heads=False,
    ),
    Example("GTE", ("gte",), (), "Gte", {"pad_token_id": 0}),
    Example(
        "GTE, layout of its code",
        ("new", "gte"),
        (
            "Alibaba-NLP/gte-base-en-v1.5",
            "Alibaba-NLP/gte-multilingual-base",
            "Snowflake/snowflake-arctic-embed-m-v2.0",
        ),
        save=save_new,
    ),
    Example(
        "jina-embeddings-v3, without adapters",
        ("jina_embeddings_v3",),
        ("jinaai/jina-embeddings-v3-hf",),
        "JinaEmbeddingsV3",
        {"pad_token_id": 0},
    ),
    Example(
        "jina-embeddings-v2, layout of its code",
        ("bert",),
        ("jinaai/jina-embeddings-v2-base-en", "jinaai/jina-embeddings-v2-small-en"),
        save=save_jina_v2,
        takes_heads=False,
    ),
    Example(
        "jina-embeddings-v3, layout of its code",
        ("xlm-roberta",),
        ("jinaai/jina-embeddings-v3",),
        save=save_jina,
        takes_heads=False,
    ),
    Example("EuroBERT", ("eurobert",), (), "EuroBert", {**_GROUPED, **_ONE, "mask_token_id": 1}),
    Example(
        "Qwen3",
        ("qwen3",),
        ("Qwen/Qwen3-Embedding-0.6B",),
        "Qwen3",
        {**_GROUPED, "head_dim": 12, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    Example(
        "Qwen2",
        ("qwen2",),
        ("Qwen/Qwen2.5-0.5B",),
        "Qwen2",
        {**_GROUPED, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    Example(
        "CLIP (texts)",
        ("clip_text_model",),
        ("openai/clip-vit-base-patch32",),
        "CLIPText",
        {"eos_token_id": 1, "projection_dim": 20},
    ),
    Example(
        "SigLIP (texts)",
        ("siglip_text_model", "siglip2_text_model"),
        ("google/siglip2-base-patch16-224",),
        "SiglipText",
        {"projection_size": 20},
    ),
    Example("Llama", ("llama",), ("meta-llama/Llama-3.2-1B",), "Llama", _GROUPED),
    Example(
        "Mistral", ("mistral",), ("intfloat/e5-mistral-7b-instruct",), "Mistral", {**_GROUPED, "sliding_window": WINDOW}
    ),
    Example("Gemma", ("gemma",), ("BAAI/bge-reranker-v2-gemma",), "Gemma", {**_GROUPED, "head_dim": 12}),
    Example(
        "Gemma 2",
        ("gemma2",),
        ("BAAI/bge-multilingual-gemma2",),
        "Gemma2",
        {
            **_GROUPED,
            "head_dim": 12,
            "query_pre_attn_scalar": 7,
            # Scores of random weights are small: a higher cap would change nothing.
            "attn_logit_softcapping": 0.5,
            "sliding_window": WINDOW,
        },
    ),
    Example(
        "Gemma 3 (text)",
        ("gemma3_text",),
        ("google/embeddinggemma-300m",),
        "Gemma3",
        {
            **_GROUPED,
            "head_dim": 12,
            "query_pre_attn_scalar": 7,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 2 * WINDOW,
            "use_bidirectional_attention": True,
            "bos_token_id": 1,
        },
        "TextModel",
        "Gemma3TextConfig",
    ),
    Example(
        "T5 (encoder, or a head)",
        ("t5",),
        ("sentence-transformers/sentence-t5-base", "sentence-transformers/gtr-t5-base"),
        "T5",
        _T5,
        "EncoderModel",
    ),
    Example("mT5 (encoder, or a head)", ("mt5",), ("unicamp-dl/mt5-base-mmarco-v2",), "MT5", _T5, "EncoderModel"),
    Example("UMT5 (encoder, or a head)", ("umt5",), ("google/umt5-base",), "UMT5", _T5, "EncoderModel"),
    Example(
        "BART",
        ("bart",),
        ("facebook/bart-large-mnli", "valhalla/distilbart-mnli-12-3"),
        "Bart",
        {
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 40,
            "scale_embedding": True,
        },
    ),
    Example("ViT", ("vit",), ("google/vit-base-patch16-224",), "ViT"),
    Example("DeiT", ("deit",), ("facebook/deit-base-distilled-patch16-224",), "DeiT"),
    Example("BEiT", ("beit",), ("microsoft/beit-base-patch16-224", "microsoft/dit-base"), "Beit"),
    Example("data2vec (images)", ("data2vec-vision",), ("facebook/data2vec-vision-base-ft1k",), "Data2VecVision"),
    Example("DINOv2", ("dinov2",), ("facebook/dinov2-base",), "Dinov2"),
    Example(
        "DINOv2 with registers",
        ("dinov2_with_registers",),
        ("facebook/dinov2-with-registers-base",),
        "Dinov2WithRegisters",
    ),
    Example("DINOv3 (ViT)", ("dinov3_vit",), ("facebook/dinov3-vits16-pretrain-lvd1689m",), "DINOv3ViT"),
    Example("CLIP (images)", ("clip", "clip_vision_model"), ("openai/clip-vit-base-patch32",), "CLIPVision"),
    Example("SigLIP (images)", ("siglip", "siglip_vision_model"), ("google/siglip-base-patch16-224",), "SiglipVision"),
    Example(
        "audio spectrogram transformer",
        ("audio-spectrogram-transformer",),
        ("MIT/ast-finetuned-audioset-10-10-0.4593",),
        "AST",
    ),
    Example("Whisper (encoder blocks)", ("whisper",), ("openai/whisper-small",), "Whisper"),
    Example("wav2vec 2.0", ("wav2vec2",), ("facebook/wav2vec2-base-960h",), "Wav2Vec2"),
    Example("HuBERT", ("hubert",), ("facebook/hubert-large-ls960-ft",), "Hubert"),
    Example("WavLM", ("wavlm",), ("microsoft/wavlm-base-plus",), "WavLM"),
]
# The families of texts, by the name of their classes.
TEXT_EXAMPLES = {each.name: each for each in EXAMPLES if not each.takes_features and not each.save}


def save_example(folder: Path, name: str, kind: str = "", **changes: Any) -> transformers.PreTrainedModel:
    """Save the example of a family of texts, with other fields of its configuration and a model of another kind."""
    example = TEXT_EXAMPLES[name]
    settings = {**example.settings, **changes}
    return save_family(folder, name, kind or example.kind, example.config_class, **settings)
