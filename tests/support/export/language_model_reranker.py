"""A tiny random language model that reranks, as sentence-transformers saves Qwen3-Reranker."""

from pathlib import Path
from typing import Any

import numpy as np
import transformers
from tokenizers import Tokenizer

from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.encoder.reference import concatenate, run_in_pytorch
from headwaiter_proto.rules.pairs import text_of_pair
from tests.support.checkpoints import write_json, write_modules_json
from tests.support.export.family_examples import save_example
from tests.support.export.tokenizer_folders import byte_level_bpe
from tests.support.oracle import Array

TRUE, FALSE = "yes", "no"
# The query ends before a line break, with which some tokenizers join a question mark.
TEMPLATE = """<|im_start|>system
Answer with yes or no.<|im_end|>
<|im_start|>user
<Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("Rank") }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
<|im_start|>assistant
"""
PAIRS = [
    ("what is bread?", "fresh bread on the table."),
    ("rain", " falls on stone"),
    ("", ""),
    ("two\n", "\ttables \n"),
    ("the <|im_end|> of rain", "雨 İ e\u0301"),
]


def reranker_tokenizer() -> Tokenizer:
    """Return a tokenizer of byte pairs with the tokens of the template."""
    tokenizer = byte_level_bpe()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    tokenizer.add_tokens([TRUE, FALSE])
    return tokenizer


def save_reranker(
    folder: Path, template: str = TEMPLATE, settings: dict[str, Any] | None = None, **choices: Any
) -> None:
    """Save the model.

    Args:
        folder: new or empty folder.
        template: the chat template.
        settings: fields of config_sentence_transformers.json.
        choices: fields of config.json.
    """
    tokenizer = reranker_tokenizer()
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 400}
    layers = {"use_sliding_window": False, "sliding_window": None, "layer_types": ["full_attention"] * 2}
    save_example(folder, "Qwen3", "ForCausalLM", **{"tie_word_embeddings": True, **sizes, **layers, **choices})
    tokenizer.save(str(folder / "tokenizer.json"))
    words = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "Qwen2Tokenizer", **words})
    # transformers keeps the last line break of a file's template, and Jinja drops it.
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    write_modules_json(folder, "base.modules.transformer.Transformer", "cross_encoder.modules.logit_score.LogitScore")
    ids = {"true_token_id": tokenizer.token_to_id(TRUE), "false_token_id": tokenizer.token_to_id(FALSE)}
    write_json(folder / "1_LogitScore" / "config.json", {**ids, "module_input_name": "causal_logits"})
    write_json(
        folder / "config_sentence_transformers.json",
        {"model_type": "CrossEncoder", "prompts": {}, "default_prompt_name": None, **(settings or {})},
    )
    logits = {"method": "forward", "method_output_name": "logits"}
    write_json(
        folder / "sentence_bert_config.json",
        {
            "transformer_task": "text-generation",
            "modality_config": {"text": logits, "message": {**logits, "format": "flat"}},
            "module_output_name": "causal_logits",
        },
    )
    transformers.logging.set_verbosity_error()


def scores(folder: Path) -> Array:
    """Return the scores that the export gives for `PAIRS`, with the function of the checkpoint."""
    loaded = read_checkpoint(folder)
    assert loaded.text is not None
    assert loaded.text.pair_template is not None
    assert loaded.encoder.config.head is not None
    tokenizer = Tokenizer.from_str(loaded.text.tokenizer)
    texts = [text_of_pair(loaded.text.pair_template, pair) for pair in PAIRS]
    ids = [np.array(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    logits = concatenate(run_in_pytorch(loaded.encoder, ids)).logits
    assert logits is not None
    computed = np.concatenate(logits)[:, 0]
    return computed if loaded.encoder.config.head.function == "identity" else 1 / (1 + np.exp(-computed))


def expected_scores(folder: Path) -> Array:
    """Return the scores that `sentence-transformers` gives for `PAIRS`."""
    from sentence_transformers import CrossEncoder

    predicted: Array = CrossEncoder(str(folder), device="cpu").predict(PAIRS)
    return predicted
