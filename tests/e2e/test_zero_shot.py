"""A served BART gives a text to labels that it has never seen as the zero-shot pipeline of `transformers` does."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from tests.support.checkpoints import write_json
from tests.support.e2e.exported import export_checkpoint
from tests.support.e2e.in_process_server import connect, serving
from tests.support.export.family_examples import save_example
from tests.support.export.tokenizer_folders import byte_level_bpe

TEXTS = ["fresh bread on the table", "the rain falls on stone and on bread", "a"]
LABELS = ["food", "weather and the sea", "travel"]
TEMPLATE = "This example is {}."


# Exporting a bundle takes seconds. In every run, the logits of such a checkpoint are compared in PyTorch.
@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
async def test_labels_are_ranked_as_the_pipeline_of_transformers_ranks_them(tmp_path: Path) -> None:
    checkpoint, bundle, tokenizer = tmp_path / "checkpoint", tmp_path / "bundle", byte_level_bpe()
    labels = {0: "contradiction", 1: "neutral", 2: "entailment"}
    model = save_example(
        checkpoint,
        "Bart",
        "ForSequenceClassification",
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=64,
        id2label=labels,
        label2id={name: number for number, name in labels.items()},
    )
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    write_json(checkpoint / "tokenizer_config.json", {"tokenizer_class": "BartTokenizer"})
    export_checkpoint(checkpoint, bundle, "nli")
    pipeline = transformers.pipeline(
        "zero-shot-classification", model=model, tokenizer=transformers.AutoTokenizer.from_pretrained(checkpoint)
    )
    async with serving(bundle) as server, connect(server) as client:
        entailment = (await client.model()).head.labels.index("entailment")
        for text in TEXTS:
            pairs = [(text, TEMPLATE.format(label)) for label in LABELS]
            logits = (await client.classify(pairs, raw_scores=True)).scores
            shares = torch.tensor(logits[:, entailment]).softmax(0).numpy()
            expected = pipeline(text, LABELS, hypothesis_template=TEMPLATE)
            order = np.argsort(-shares)
            assert [LABELS[index] for index in order] == expected["labels"]
            np.testing.assert_allclose(shares[order], expected["scores"], rtol=0, atol=1e-5)
