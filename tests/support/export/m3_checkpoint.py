"""Tiny random models with the two linear layers of FlagEmbedding, as bge-m3 has, and the formulas of their outputs."""

from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModel, AutoTokenizer

from tests.support.checkpoints import save_bert, save_sentence_transformer, save_tokenizer, write_json
from tests.support.oracle import Array

VECTOR_WIDTH = 12
TEXTS = ["rain falls on the stone, the stone", "", "bread", "[UNK] is fresh 7 [MASK] please", "table for two " * 8]


class M3Outputs(NamedTuple):
    """The outputs of one text: a dense vector [d], the weights of token ids, and a vector of each token [n - 1, w]."""

    dense: Array
    weights: dict[int, float]
    vectors: Array


def save_m3(folder: Path, *, is_sentence_transformer: bool = True) -> None:
    """Save a BERT with the files of both layers, alone or as `sentence-transformers` saves bge-m3."""
    save_bert(folder)
    save_tokenizer(folder)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizerFast", "model_max_length": 64})
    if is_sentence_transformer:
        save_sentence_transformer(folder)
        pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
        write_json(folder / "1_Pooling" / "config.json", pooling)
        (folder / "config_sentence_transformers.json").unlink()
    torch.manual_seed(1)
    torch.save(torch.nn.Linear(32, 1).state_dict(), folder / "sparse_linear.pt")
    torch.save(torch.nn.Linear(32, VECTOR_WIDTH).state_dict(), folder / "colbert_linear.pt")


@torch.inference_mode()
def expected_outputs(folder: Path, max_tokens: int) -> list[M3Outputs]:
    """Return what FlagEmbedding computes for each of `TEXTS` alone: BGE-M3, section 3.2."""
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    sparse, several = torch.nn.Linear(32, 1), torch.nn.Linear(32, VECTOR_WIDTH)
    for layer, name in ((sparse, "sparse_linear.pt"), (several, "colbert_linear.pt")):
        layer.load_state_dict(torch.load(folder / name, weights_only=True))
    named = (tokenizer.special_tokens_map.get(f"{kind}_token") for kind in ("cls", "eos", "pad", "unk"))
    unused = {tokenizer.convert_tokens_to_ids(name) for name in named if name}
    outputs = []
    for text in TEXTS:
        ids = tokenizer(text, truncation=True, max_length=max_tokens)["input_ids"]
        rows = model.double()(input_ids=torch.tensor([ids])).last_hidden_state[0]
        weights: dict[int, float] = {}
        for token_id, weight in zip(ids, sparse.double()(rows).relu()[:, 0].tolist(), strict=True):
            if token_id not in unused and weight > 0:
                weights[token_id] = max(weight, weights.get(token_id, 0.0))
        vectors = torch.nn.functional.normalize(several.double()(rows[1:]), dim=-1)
        outputs.append(M3Outputs((rows[0] / rows[0].norm()).numpy(), weights, vectors.numpy()))
    return outputs
