"""A checkpoint with any field that the libraries read gives what the libraries give, or is refused in one line.

Fields are added to files, and files are missing or empty. Texts have lengths around the limits.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, processors

from headwaiter_export.checkpoints.json_files import CheckpointError
from tests.support.checkpoints import write_json
from tests.support.export.changed_files import changed_file
from tests.support.export.compared_models import MODELS, ComparedModel
from tests.support.export.library_fields import fields_in
from tests.support.tiers import exhaustive

pytestmark = pytest.mark.filterwarnings("ignore")
VALUES = ("max", None, True, False, 0, 3, 0.5, "left", ["query"], {"a": 1})
# Values that only these fields can have.
OWN_VALUES: dict[str, tuple[Any, ...]] = {
    "chat_template": ("{{ messages[0]['content'] }}!",),
    "config_kwargs": ({"num_hidden_layers": 1},),
    "default_prompt_name": ("document",),
    "model_kwargs": ({"dtype": "float16"},),
    "pad_token": ("[MASK]", "[SEP]"),
    "pooling_mode": ("cls", "lasttoken", "weightedmean", ["max", "cls"]),
    "processing_kwargs": ({"text": {"max_length": 5}}, {"text": {"truncation": False}}),
    "processor_kwargs": ({"model_max_length": 5}, {"padding_side": "left"}),
    "prompts": ({"query": "rain "}, {"query": None}, {"other": "stone "}),
    "query_expansion": ({"strategy": "min", "length": 9, "attend": True},),
    "requirements": ({"transformers": ">=1"},),
}
# Files that the libraries look for beside those of a checkpoint.
OTHER_FILES = (
    *("special_tokens_map.json", "added_tokens.json", "processor_config.json", "preprocessor_config.json"),
    *("generation_config.json", "video_preprocessor_config.json", "chat_template.json", "vocab.json"),
    *(f"sentence_{name}_config.json" for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta")),
    *("sentence_xlnet_config.json", "sentence_mpnet_config.json", "similarity_evaluation_results.json"),
)
OTHER_CONTENTS: tuple[dict[str, Any], ...] = ({}, {"max_seq_length": 7}, {"do_lower_case": True, "model_max_length": 5})


class Comparison:
    """Compares the export with the libraries, and counts the outcomes.

    Attributes:
        outcomes: how often each outcome was found.
        found: the changes with other results, or with an error that the export does not know.
    """

    def __init__(self, model: ComparedModel, folder: Path) -> None:
        self._model, self._folder = model, folder
        self.outcomes: Counter[str] = Counter()
        self.found: list[str] = []

    def compare(self, change: str, weight: int = 1, *, only_equal: bool = False) -> bool:
        """Compare results, and return whether they are equal; with `only_equal`, count nothing else."""
        outcome = self._outcome()
        if outcome == "equal" or not only_equal:
            self.outcomes[outcome.partition(":")[0]] += weight
        if outcome.startswith("different") and not only_equal:
            self.found.append(f"{change}: {outcome}")
        return outcome == "equal"

    def _outcome(self) -> str:
        try:
            results = self._model.actual(self._folder)
        except CheckpointError as error:
            return "different: two lines" if "\n" in str(error) else "refused"
        except Exception as error:  # noqa: BLE001 - any other error is a traceback for the user
            return f"different: {error!r}"
        try:
            references = self._model.expected(self._folder)
        except Exception:  # noqa: BLE001 - the libraries cannot read the checkpoint either
            return "no reference"
        if any(np.isinf(each).any() for each in references):
            return "no reference"
        equal = len(results) == len(references) and all(map(_equal, results, references))
        return "equal" if equal else "different: other results"


def _equal(found: Any, expected: Any) -> bool:
    scale = np.abs(expected).max(initial=0, where=np.isfinite(expected))
    return found.shape == expected.shape and np.allclose(found, expected, rtol=0, atol=2e-5 * scale, equal_nan=True)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    # This comparison is the subject of test_tokenizers.py.
    monkeypatch.setattr("headwaiter_export.checkpoints.texts.check_against_transformers", lambda *_, **__: None)


def saved(name: str, folder: Path) -> Comparison:
    """Save a model of this kind in a new folder."""
    torch.manual_seed(0)
    if name != "several vectors":
        folder.mkdir()
    MODELS[name].save(folder)
    return Comparison(MODELS[name], folder)


def add_fields(comparison: Comparison, path: Path, changes: Mapping[str, Any]) -> set[str]:
    """Compare with fields added to a file, and return those whose results are not equal.

    All fields are added together. If the results are not equal, each half of the fields is compared alone.
    """
    content = json.loads(path.read_text()) if path.is_file() else {}
    changes = {name: value for name, value in changes.items() if repr(content.get(name, ...)) != repr(value)}
    if not changes:
        return set()
    with changed_file(path, {**content, **changes}):
        if comparison.compare(f"{path.name} {changes}", len(changes), only_equal=len(changes) > 1):
            return set()
    if len(changes) == 1:
        return set(changes)
    names = list(changes)
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    return {name for half in halves for name in add_fields(comparison, path, {each: changes[each] for each in half})}


def compare_fields(name: str, file: str, folder: Path, values: tuple[Any, ...]) -> Comparison:
    """Compare with each field that the libraries read from a file, with each of the values."""
    comparison = saved(name, folder)
    path, fields = folder / file, MODELS[name].files[file]()
    path.parent.mkdir(exist_ok=True)
    decisive: set[str] = set()
    for value in values:
        for field in sorted(decisive):
            add_fields(comparison, path, {field: value})
        decisive |= add_fields(comparison, path, dict.fromkeys(sorted(fields - decisive), value))
    for field in sorted(fields & OWN_VALUES.keys()):
        for value in OWN_VALUES[field]:
            add_fields(comparison, path, {field: value})
    return comparison


def assert_none_different(comparison: Comparison) -> None:
    """Check that all results are equal, or refused."""
    print("outcomes:", dict(comparison.outcomes))
    assert comparison.found == []
    assert comparison.outcomes["equal"]


FILES = [(name, file) for name, model in MODELS.items() for file in model.files]
EVERY_RUN = [("sparse", "config_sentence_transformers.json"), ("text", "1_Pooling/config.json")]


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("name", "file", "values"),
    [
        *((*each, VALUES[:1]) for each in EVERY_RUN),
        *exhaustive(*((*each, VALUES) for each in FILES)),
    ],
)
def test_added_fields(name: str, file: str, values: tuple[Any, ...], tmp_path: Path) -> None:
    assert_none_different(compare_fields(name, file, tmp_path / "model", values))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", exhaustive(*MODELS))
def test_files_that_are_missing_or_empty(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    comparison = saved(name, folder)
    for path in sorted(folder.rglob("*.json")):
        with _missing(path):
            comparison.compare(f"{path.name} is missing")
        with changed_file(path, {}):
            comparison.compare(f"{path.name} is empty")
    for file in OTHER_FILES:
        for content in OTHER_CONTENTS if not (folder / file).exists() else ():
            with changed_file(folder / file, content):
                comparison.compare(f"{file} is {content}")
    assert_none_different(comparison)


@contextmanager
def _missing(path: Path) -> Iterator[None]:
    path.rename(path.with_suffix(".moved"))
    try:
        yield
    finally:
        path.with_suffix(".moved").rename(path)


# Changes of files of texts, of which each two are made together.
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "short": ("sentence_bert_config.json", {"max_seq_length": 4}),
    "without a limit": ("sentence_bert_config.json", {"max_seq_length": None}),
    "lower case": ("sentence_bert_config.json", {"do_lower_case": True}),
    "no settings": ("sentence_bert_config.json", {}),
    "of RoBERTa": ("sentence_roberta_config.json", {"max_seq_length": 6}),
    "another default": ("config_sentence_transformers.json", {"default_prompt_name": "document"}),
    "no default": ("config_sentence_transformers.json", {"default_prompt_name": None}),
    "few dimensions": ("config_sentence_transformers.json", {"truncate_dim": 7, "max_active_dims": 7}),
    "long prompts": ("config_sentence_transformers.json", {"prompts": {"query": "rain falls on the stone "}}),
    "cls": ("1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}),
    "prompts left out": ("1_Pooling/config.json", {"include_prompt": False}),
    "two poolings": ("1_Pooling/config.json", {"pooling_mode": ["max", "mean"], "pooling_mode_max_tokens": True}),
    "few tokens": ("tokenizer_config.json", {"model_max_length": 5}),
    "left": ("tokenizer_config.json", {"padding_side": "left"}),
    "cased": ("tokenizer_config.json", {"do_lower_case": False}),
    "other inputs": ("tokenizer_config.json", {"model_input_names": ["input_ids", "attention_mask"]}),
    "relu": ("config.json", {"hidden_act": "relu"}),
    "no ties": ("config.json", {"tie_word_embeddings": False}),
}
TEXT_MODELS = tuple(name for name in MODELS if name not in ("images", "sounds"))


@pytest.mark.parametrize("name", ["text", *exhaustive(*(each for each in TEXT_MODELS if each != "text"))])
@pytest.mark.parametrize("part", [0, *exhaustive(*range(1, 8))])
def test_two_changes_together(name: str, part: int, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    comparison = saved(name, folder)
    for number, pair in enumerate(combinations(CHANGES, 2)):
        if number % 8 != part:
            continue
        with ExitStack() as stack:
            for change in pair:
                path = folder / CHANGES[change][0]
                if path.parent.is_dir():
                    content = json.loads(path.read_text()) if path.is_file() and CHANGES[change][1] else {}
                    stack.enter_context(changed_file(path, {**content, **CHANGES[change][1]}))
            comparison.compare(" and ".join(pair))
    assert_none_different(comparison)


TEMPLATES = ("$A", "[CLS] $A", "$A [SEP]", "[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP]", "[CLS] the $A [SEP]")
SETTINGS: dict[str, Callable[[Path], None]] = {
    "nothing": lambda _: None,
    "limits": lambda folder: _edit(folder / "sentence_bert_config.json", max_seq_length=5),
    "limit of the tokenizer": lambda folder: _edit(folder / "tokenizer_config.json", model_max_length=6),
    "lower case": lambda folder: _edit(folder / "sentence_bert_config.json", do_lower_case=True),
    "left": lambda folder: _edit(folder / "tokenizer_config.json", padding_side="left"),
    "prompts left out": lambda folder: _edit(folder / "1_Pooling" / "config.json", include_prompt=False),
    "expansion": lambda folder: _edit(
        folder / "sentence_bert_config.json", query_expansion={"strategy": "min", "length": 9, "attend": True}
    ),
}


def _edit(path: Path, **changes: Any) -> None:
    if path.parent.is_dir():
        write_json(path, {**(json.loads(path.read_text()) if path.is_file() else {}), **changes})


@pytest.mark.parametrize("name", exhaustive("text", "sparse", "several vectors", "cross-encoder"))
@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_with_settings_and_limits(name: str, template: str, tmp_path: Path) -> None:
    comparisons = []
    for number, setting in enumerate(SETTINGS):
        folder = tmp_path / f"model{number}"
        comparisons.append(saved(name, folder))
        path = folder / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(path))
        added = [(each, tokenizer.token_to_id(each)) for each in ("[CLS]", "[SEP]", "the")]
        pair = template.replace("$A", "$A [SEP] $B:1") if name == "cross-encoder" else None
        tokenizer.post_processor = processors.TemplateProcessing(single=template, pair=pair, special_tokens=added)
        tokenizer.save(str(path))
        special = {f"{token}_token": f"[{token.upper()}]" for token in ("pad", "unk", "cls", "sep", "mask")}
        _edit(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", **special)
        SETTINGS[setting](folder)
        comparisons[-1].compare(f"{template} with {setting}")
    print("outcomes:", dict(sum((each.outcomes for each in comparisons), Counter())))
    assert [found for each in comparisons for found in each.found] == []


# The fields of config_sentence_transformers.json that change no vector and no score.
WITHOUT_NUMBERS = {"__version__", "keep_in_fp32_modules", "requirements", "sentence_transformers", "similarity_fn_name"}
# The fields that the export applies, or refuses by name.
KNOWN = {
    *("activation_fn", "default_prompt_name", "max_active_dims", "model_type", "prompts", "truncate_dim"),
    *("attend_to_expansion_tokens", "attend_to_mask_tokens", "do_query_expansion", "document_length"),
    *("document_prefix", "query_expansion", "query_length", "query_prefix", "skiplist_words"),
}


def test_each_field_that_sentence_transformers_reads_of_a_model_is_known() -> None:
    import sentence_transformers as st
    from sentence_transformers.multi_vector_encoder.model import _LegacyStash

    read = set(_LegacyStash._PYLATE_TRANSFORMER_KEYS)
    for kind in (st.SentenceTransformer, st.SparseEncoder, st.CrossEncoder, st.MultiVectorEncoder):
        for each in kind.__mro__:
            for method in ("_parse_model_config", "_get_model_config", "_load_config_modules"):
                if method in vars(each):
                    read |= fields_in(vars(each)[method])
    # Fields of modules.json and of arguments.
    read -= {"path", "type", "name", "kwargs", "query", "document", "init_defaults", "module_classes"}
    read -= {"model_args", "config_args", "tokenizer_args", "model_kwargs", "config_kwargs", "processor_kwargs"}
    assert read - KNOWN - WITHOUT_NUMBERS == set()
