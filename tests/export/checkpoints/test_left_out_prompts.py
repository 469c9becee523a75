"""With include_prompt false, pooling leaves out the rows that sentence-transformers leaves out."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, processors

from tests.support.checkpoints import write_json
from tests.support.export.compared_models import expected_text_vectors, save_embedder, text_vectors
from tests.support.export.helpers import assert_close, edit_json
from tests.support.tiers import exhaustive

pytestmark = pytest.mark.filterwarnings("ignore")
POOLINGS = ("cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean")
# Templates without a special token at the end, with one, with two, and with a token that is not special.
TEMPLATES = ("$A", "[CLS] $A", "$A [SEP]", "[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP]", "[CLS] $A the")
PROMPTS = ("rain ", " ", "rain [SEP]", "雨", "rain fal")
EVERY_RUN = [
    ("$A", "mean", "rain "),
    ("[CLS] $A", "cls", "rain "),
    ("[CLS] $A", "lasttoken", "雨"),
    ("[CLS] $A", "weightedmean", "rain [SEP]"),
    ("[CLS] $A [SEP]", "mean", " "),
    ("[CLS] $A [SEP] [SEP]", "mean_sqrt_len_tokens", "rain "),
    ("[CLS] $A the", "max", "rain "),
]
OTHERS = [
    case
    for case in ((template, pooling, prompt) for template in TEMPLATES for pooling in POOLINGS for prompt in PROMPTS)
    # sentence-transformers cannot count the tokens of a prompt without any.
    if case not in EVERY_RUN and case[::2] != ("$A", " ")
]


def save(folder: Path, template: str, pooling: str, prompt: str) -> None:
    """Save an embedder whose pooling leaves out prompts, and whose tokenizer has this template."""
    save_embedder(folder)
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    added = [(each, tokenizer.token_to_id(each)) for each in template.split() if each != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=added)
    tokenizer.save(str(path))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **special})
    settings = {"embedding_dimension": 32, "pooling_mode": pooling, "include_prompt": False}
    write_json(folder / "1_Pooling" / "config.json", settings)
    edit_json(folder / "config_sentence_transformers.json", prompts={"query": prompt, "document": ""})


@pytest.mark.parametrize(("template", "pooling", "prompt"), [*EVERY_RUN, *exhaustive(*OTHERS)])
def test_the_vectors_equal_those_of_sentence_transformers(
    template: str, pooling: str, prompt: str, tmp_path: Path
) -> None:
    save(tmp_path, template, pooling, prompt)
    found, expected = text_vectors(tmp_path), expected_text_vectors("SentenceTransformer")(tmp_path)
    for one, other in zip(found, expected, strict=True):
        # A server refuses a text without tokens; and sentence-transformers has no finite maximum of no rows.
        answered = np.isfinite(one + other).all(1)
        assert answered[1:].all()
        assert answered[0] or template == "$A" or pooling == "max"
        assert_close(one[answered], other[answered])
