"""Random BERTs with a head, as checkpoints of transformers and as bundles."""

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.checkpoints import VOCABULARY, randomize, save_tokenizer, write_json
from tests.support.e2e.exported import export_checkpoint

MAX_TEXT_TOKENS = 24


def save_classifier(folder: Path, kind: str, labels: int, max_tokens: int = MAX_TEXT_TOKENS) -> Any:
    """Save a BERT of this class of transformers, with a tokenizer, and return the model."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}
    sizes |= {"vocab_size": len(VOCABULARY), "max_position_embeddings": max_tokens + 16, "num_labels": labels}
    model = getattr(transformers, kind)(transformers.BertConfig(attn_implementation="eager", **sizes)).eval()
    randomize(model)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    write_json(folder / "tokenizer_config.json", {"model_max_length": max_tokens})
    return model


def export_classifier(checkpoint: Path, bundle: Path) -> None:
    """Export a checkpoint with the graph for CPUs and the graph of attention weights."""
    export_checkpoint(checkpoint, bundle, "classifier", attends=True)
