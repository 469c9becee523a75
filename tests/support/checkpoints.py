"""Small checkpoints with random weights, saved by `transformers` like a user's checkpoint.

`save_bert`, `save_tokenizer` and `save_sentence_transformer` write the parts of one folder; tests call those they need.
"""

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from headwaiter_export.config.choices import Positions
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.encoder import Encoder

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("the", "a", "bread", "is", "fresh", "table", "for", "two", "please", "rain", "falls", "on", "stone", "##s")
VOCABULARY = [*SPECIAL_TOKENS, *string.ascii_lowercase, *(f"##{c}" for c in string.ascii_lowercase), *WORDS[1:], "the"]


def save_bert(folder: Path, **settings: object) -> transformers.BertModel:
    """Save a BERT of two layers; its weights are large, so that attention is far from uniform."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **{
            "vocab_size": len(VOCABULARY),
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
            "attn_implementation": "eager",
            **settings,
        }
    )
    model = transformers.BertModel(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    return model


def save_vit(folder: Path, kind: str = "ViTModel", **settings: Any) -> transformers.PreTrainedModel:
    """Save a ViT for images [3, 12, 12] of 9 patches."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}
    config = transformers.ViTConfig(**{**sizes, "image_size": 12, "patch_size": 4, **settings})
    model = getattr(transformers, kind)(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    return model


def randomize(model: torch.nn.Module) -> None:
    """Add noise to every parameter, including biases and norms."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))


def feature_encoder() -> Encoder:
    """Return an encoder for at most 48 feature vectors of width 6, without positions and embedding norm."""
    torch.manual_seed(1)
    encoder = Encoder(
        EncoderConfig(
            feature_width=6,
            d_model=24,
            heads=3,
            layers=2,
            d_ff=48,
            max_tokens=48,
            positions=Positions.NONE,
            embedding_norm=False,
            norm_eps=1e-5,
        )
    )
    randomize(encoder)
    return encoder.eval()


def save_tokenizer(folder: Path) -> None:
    """Save a WordPiece tokenizer that truncates and pads, like the tokenizer of all-MiniLM-L6-v2."""
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(token, VOCABULARY.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(folder / "tokenizer.json"))


def save_sentence_transformer(
    folder: Path, *, modules: tuple[str, ...] = ("Transformer", "Pooling", "Normalize")
) -> None:
    """Add the files of `sentence-transformers`: modules, mean pooling, a text limit of 32 tokens, prompts."""
    write_modules_json(folder, *(f"models.{kind}" for kind in modules))
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 32, "do_lower_case": False})
    prompts = {"query": "rain on a ", "passage": "the table: ", "document": None}
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": None})
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    write_json(folder / "1_Pooling" / "config.json", pooling)


def write_modules_json(folder: Path, *classes: str) -> None:
    """List modules by their classes in `sentence_transformers`; the folder of the second is "1_" and its class."""
    listed = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{name.rpartition('.')[2]}" if i else "",
            "type": f"sentence_transformers.{name}",
        }
        for i, name in enumerate(classes)
    ]
    write_json(folder / "modules.json", listed)


def write_json(path: Path, value: object) -> None:
    """Write a JSON file, and create its folder."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


def bert_hidden(model: transformers.PreTrainedModel, ids: NDArray[np.generic]) -> NDArray[np.float32]:
    """Return the hidden rows [n, d] of one sequence in `transformers`."""
    with torch.inference_mode():
        hidden: NDArray[np.float32] = model(torch.from_numpy(ids)[None])[0][0].numpy()
    return hidden
