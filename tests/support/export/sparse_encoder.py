"""A tiny random model of sparse vectors, as sentence-transformers saves SPLADE."""

from pathlib import Path

import transformers

from tests.support.checkpoints import write_json, write_modules_json
from tests.support.export.family_examples import save_example
from tests.support.export.tokenizer_folders import word_piece
from tests.support.oracle import Array

TEXTS = ["rain falls on the stone", "", "fresh bread on the table, and rain", "stone " * 12]


def save_sparse_encoder(folder: Path, activation: str = "relu") -> None:
    """Save the model with its tokenizer; `activation` is activation_function of SpladePooling."""
    tokenizer = word_piece()
    save_example(folder, "Bert", "ForMaskedLM", vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=100)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    write_modules_json(
        folder, "base.modules.transformer.Transformer", "sparse_encoder.modules.splade_pooling.SpladePooling"
    )
    settings = {"pooling_strategy": "max", "activation_function": activation, "embedding_dimension": None}
    write_json(folder / "1_SpladePooling" / "config.json", settings)
    write_json(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder", "prompts": {}})
    write_json(
        folder / "sentence_bert_config.json",
        {
            "transformer_task": "fill-mask",
            "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
            "module_output_name": "token_embeddings",
        },
    )
    transformers.logging.set_verbosity_error()


def expected_vectors(folder: Path) -> Array:
    """Return the vectors that `sentence-transformers` gives for `TEXTS`, with all their zeros."""
    from sentence_transformers import SparseEncoder

    encoded: Array = SparseEncoder(str(folder), device="cpu").encode(TEXTS).to_dense().numpy()
    return encoded
