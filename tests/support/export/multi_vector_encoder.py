"""Tiny random models of several vectors for each text, as sentence-transformers saves ColBERT."""

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import processors

from tests.support.checkpoints import write_json
from tests.support.export.family_examples import save_example
from tests.support.export.tokenizer_folders import word_piece
from tests.support.oracle import Array

QUERIES = ["rain, on the stone", "is bread fresh?", "rain falls on " * 6, ""]
DOCUMENTS = ["rain falls on the stone.", "", "fresh bread, on the table; and rain!", "stone " * 12, "..."]
VECTOR_WIDTH = 12
# The settings of Transformer and of MultiVectorMask.
EXPANSION = {"strategy": "fixed", "attend": False, "token": None, "length": 12}
COLBERT_PROMPTS = {"query": "[Q] ", "document": "[D] "}
Settings = Mapping[str, Any]


def save_multi_vector_encoder(
    folder: Path,
    family: str = "Bert",
    *,
    transformer: Settings | None = None,
    mask: Settings | None = None,
    prompts: Mapping[str, str] = COLBERT_PROMPTS,
    dense: Sequence[int] = (VECTOR_WIDTH,),
    ends: str = "[SEP]",
    **fields: Any,
) -> None:
    """Save a model of this family of `transformers`.

    Args:
        folder: folder of the model.
        family: name of its family.
        transformer: settings of Transformer; by default, masks expand queries to 12 tokens.
        mask: settings of MultiVectorMask; by default, the vectors of punctuation in documents are left out.
        prompts: texts before queries and documents.
        dense: the width after each Dense module.
        ends: the special token after a text.
        fields: fields of the configuration of `transformers`.
    """
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    plain = folder.parent / f"{folder.name}-transformer"
    plain.mkdir(parents=True)
    tokenizer = word_piece()
    tokenizer.add_special_tokens(["[Q] ", "[D] "])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"[CLS] $A {ends}".strip(), special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    sizes = {"vocab_size": tokenizer.get_vocab_size() + 3, "max_position_embeddings": 100}
    save_example(plain, family, **{**sizes, **fields})
    tokenizer.save(str(plain / "tokenizer.json"))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("mask", "pad", "unk", "cls", "sep")}
    write_json(plain / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **special})
    backbone = Transformer(str(plain), **({"query_expansion": EXPANSION} if transformer is None else transformer))
    modules, width = [backbone], backbone.get_embedding_dimension()
    names = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    torch.manual_seed(1)
    for wide in dense:
        modules.append(Dense(width, wide, bias=wide % 2 == 1, activation_function=torch.nn.Identity(), **names))
        width = wide
    modules.append(MultiVectorMask(**({"skiplist_words": list(string.punctuation)} if mask is None else mask)))
    modules.append(Normalize(**names))
    model = MultiVectorEncoder(modules=modules, prompts=dict(prompts), device="cpu")
    model.save_pretrained(str(folder))
    transformers.logging.set_verbosity_error()


def expected_vectors(folder: Path) -> tuple[list[Array], list[Array]]:
    """Return the vectors of each query and of each document in `sentence-transformers`."""
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(folder), device="cpu")
    # One text at a time: transformers' padding changes results by rounding.
    queries = [model.encode_query(text, convert_to_numpy=True) for text in QUERIES]
    return queries, [model.encode_document(text, convert_to_numpy=True) for text in DOCUMENTS]
