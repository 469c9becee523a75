"""A checkpoint with a changed field of its configuration or tokenizer gives what transformers gives, or is refused."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.checkpoints.texts import read_text
from headwaiter_export.checkpoints.tokenizers import comparison
from headwaiter_export.checkpoints.tokenizers.auto_tokenizer import read_checkpoint_tokenizer
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.attention_layout import SingleSequence
from tests.support.checkpoints import write_json
from tests.support.export.changed_files import changed_file, changed_files
from tests.support.export.family_examples import TEXT_EXAMPLES, save_example
from tests.support.export.tokenizer_cases import ADDED, DECLARED
from tests.support.export.tokenizer_folders import random_texts, with_added, word_level, word_piece
from tests.support.oracle import Array
from tests.support.tiers import exhaustive

Files = dict[str, dict[str, Any]]
# Vectors, or token ids, of a changed checkpoint.
Results = list[Any]

# `make check` tests every 47th change, and `make test-all` the others.
_EVERY = 47
_TEXTS = [
    *random_texts(30),
    "[CLS] a [SEP] <mask> b",
    "a[MASK]b [NEW] <extra> Added <x> <y> Addy",
    " lead",
    "İ É e\u0301",
]
_MAX_TOKENS = 64
# Fields that config.json may have, besides those that transformers writes.
_FURTHER_FIELDS: dict[str, Any] = {
    "attention_bias": True,
    "head_dim": 8,
    "hidden_act": "relu",
    "is_causal": False,
    "is_decoder": True,
    "layer_norm_eps": 1e-3,
    "layer_types": ["full_attention", "sliding_attention"],
    "norm_eps": 1e-3,
    "num_key_value_heads": 2,
    "num_labels": 3,
    "partial_rotary_factor": 1.0,
    "position_embedding_type": "absolute",
    "rms_norm_eps": 1e-3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 99.0},
    "rope_scaling": {"type": "linear", "factor": 2.0},
    "rope_theta": 5000.0,
    "sliding_window": 4,
    "type_vocab_size": 2,
}
_TOKENIZERS: dict[str, tuple[Callable[[], Tokenizer], str, Files]] = {
    "BERT": (
        word_piece,
        "bert",
        {
            "tokenizer_config.json": {
                "tokenizer_class": "BertTokenizer",
                "do_lower_case": True,
                "strip_accents": False,
                "tokenize_chinese_chars": True,
                "model_max_length": 9,
                "max_len": 8,
                "add_bos_token": True,
                "added_tokens_decoder": DECLARED,
                "extra_special_tokens": ["<extra>"],
                "truncation_side": "right",
                "padding_side": "right",
                "cls_token": "[CLS]",
                "image_token": "[NEW]",
                "stride": 0,
                "unk_id": 3,
            }
        },
    ),
    "BERT, older files": (
        lambda: with_added(word_piece()),
        "bert",
        {
            "special_tokens_map.json": {
                "mask_token": {**ADDED, "content": "[MASK]", "lstrip": True},
                "image_token": "[NEW]",
                "additional_special_tokens": ["<x>"],
                "extra_special_tokens": ["<y>"],
            },
            "added_tokens.json": {"Addy": 400, "[NEWY]": 401},
        },
    ),
    "kept": (
        lambda: with_added(word_level(lowercase=True)),
        "bert",
        {
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "[CLS]",
                "add_bos_token": True,
                "extra_special_tokens": {"a_token": "[NEW]"},
                "model_input_names": ["input_ids"],
            }
        },
    ),
}


def differences(
    path: Path, expected: Callable[[], Results], actual: Callable[[], Results], *, every_run: bool
) -> list[str]:
    """Return the changes of a file for which two functions give different results, or the second an unknown error."""
    content = json.loads(path.read_text(encoding="utf-8"))
    found, compared = [], 0
    for number, (change, changed) in enumerate(_changes(content, path.name)):
        if every_run != (number % _EVERY == 0):
            continue
        with changed_file(path, changed):
            try:
                results = actual()
            except CheckpointError as error:
                found += [f"{change}: {error}"] * ("\n" in str(error))
                continue
            except Exception as error:  # noqa: BLE001 - any other error is a traceback for the user
                found.append(f"{change}: {error!r}")
                continue
            try:
                references = expected()
            except Exception:  # noqa: BLE001 - transformers cannot read the checkpoint either
                continue
            compared += 1
            if not _equal(results, references):
                found.append(f"{change}: other results")
    assert compared or not every_run
    return found


def _changes(content: Any, file: str) -> list[tuple[str, Any]]:
    if file == "tokenizer.json":
        # The vocabulary has thousands of fields, which are all alike.
        vocabulary = {name: content["model"][name] for name in ("vocab", "merges") if name in content["model"]}
        settings = {name: value for name, value in content["model"].items() if name not in vocabulary}
        parts = {name: value for name, value in content.items() if name != "model"}
        changed = [(name, {**part, "model": content["model"]}) for name, part in changed_files(parts)]
        changed += [
            (f"model.{name}", {**content, "model": {**part, **vocabulary}}) for name, part in changed_files(settings)
        ]
        truncation = {"direction": "Left", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
        return [("nothing", content), ("truncation", {**content, "truncation": truncation}), *changed]
    further = _FURTHER_FIELDS.keys() - content if file == "config.json" and "model_type" in content else ()
    added = [(f"+{name}", {**content, name: _FURTHER_FIELDS[name]}) for name in sorted(further)]
    if "is_causal" in further:
        added.append(("+is_causal = True", {**content, "is_causal": True}))
    return [("nothing", content), *added, *changed_files(content)]


def _equal(results: Results, references: Results) -> bool:
    if not all(isinstance(each, np.ndarray) for each in results):
        return results == references
    return all(
        found.shape == expected.shape and np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()
        for found, expected in zip(results, references, strict=True)
    )


def _parts(names: list[str], every_run: Collection[str] = ()) -> list[Any]:
    """Return each name twice: with the changes that every run tests, and with the others.

    Every run tests only the names in `every_run`, unless it is empty.
    """
    some = {name: pytest.param(name, True, id=f"{name}-some") for name in names}
    often = [case for name, case in some.items() if name in (every_run or names)]
    rare = [case for name, case in some.items() if name not in (every_run or names)]
    others = [pytest.param(name, False, id=f"{name}-others") for name in names]
    return [*often, *exhaustive(*rare, *others)]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "every_run"), _parts([*TEXT_EXAMPLES]))
def test_a_changed_configuration(name: str, every_run: bool, tmp_path: Path) -> None:
    save_example(tmp_path, name)
    sequences = [np.random.default_rng(n).integers(2, 60, n) for n in (1, 7, 20)]

    def actual() -> list[Array]:
        encoder = read_checkpoint(tmp_path, Pooling.NONE).encoder
        with torch.inference_mode():
            return [encoder(torch.from_numpy(ids), SingleSequence(len(ids)))[1].numpy() for ids in sequences]

    def expected() -> list[Array]:
        model, info = getattr(transformers, f"{name}{TEXT_EXAMPLES[name].kind}").from_pretrained(
            tmp_path, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
        )
        assert not info["missing_keys"]
        with torch.inference_mode():
            return [model.eval()(torch.from_numpy(ids)[None])[0][0].numpy() for ids in sequences]

    assert differences(tmp_path / "config.json", expected, actual, every_run=every_run) == []


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Bart", "T5"])
def test_a_changed_configuration_of_a_decoder_with_a_head(name: str, tmp_path: Path) -> None:
    save_example(tmp_path, name, "ForSequenceClassification")

    def sequences() -> list[Array]:
        drawn = [np.random.default_rng(n).integers(5, 60, n) for n in (1, 7, 20)]
        end = json.loads((tmp_path / "config.json").read_text()).get("eos_token_id")
        for ids in drawn:
            # transformers scores the row of this token; it refuses a sequence without the token.
            ids[-1] = end if type(end) is int and 0 <= end < 60 else 1
        return drawn

    def actual() -> list[Array]:
        # In float64, because the rounding errors of T5 in float32 exceed the bound.
        encoder = read_checkpoint(tmp_path).encoder.double()
        results = []
        for ids in sequences():
            layout = SingleSequence(len(ids))
            with torch.inference_mode():
                logits = encoder(torch.from_numpy(ids), layout)[2]
            assert logits is not None
            results.append(logits.numpy())
        return results

    def expected() -> list[Array]:
        model, info = getattr(transformers, f"{name}ForSequenceClassification").from_pretrained(
            tmp_path, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
        )
        assert not info["missing_keys"]
        model = model.eval().double()
        with torch.inference_mode():
            return [model(torch.from_numpy(ids)[None]).logits.numpy() for ids in sequences()]

    assert differences(tmp_path / "config.json", expected, actual, every_run=False) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "every_run"), _parts([*_TOKENIZERS], every_run=("BERT",)))
def test_a_changed_tokenizer(name: str, every_run: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build, model_type, files = _TOKENIZERS[name]
    write_json(tmp_path / "config.json", {"model_type": model_type})
    build().save(str(tmp_path / "tokenizer.json"))
    for file, content in files.items():
        write_json(tmp_path / file, content)
    config = EncoderConfig(vocabulary_size=1000, d_model=8, heads=1, layers=1, d_ff=8, max_tokens=_MAX_TOKENS)
    config_json = CheckpointJson(tmp_path / "config.json", {"model_type": model_type})

    def actual() -> Results:
        with monkeypatch.context() as patch:
            patch.setattr("headwaiter_export.checkpoints.texts.check_against_transformers", lambda *_, **__: None)
            patch.setattr(comparison, "cost_problem", lambda _: None)
            text = read_text(tmp_path, read_checkpoint_tokenizer(tmp_path, config_json), config, [])
        assert text is not None
        tokenizer = Tokenizer.from_str(text.tokenizer)
        ids = [encoding.ids for encoding in tokenizer.encode_batch(_TEXTS)]
        tokenizer.enable_truncation(text.max_tokens)
        return [ids, [encoding.ids for encoding in tokenizer.encode_batch(_TEXTS)]]

    def expected() -> Results:
        tokenizer = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True, trust_remote_code=False)
        ids = tokenizer(_TEXTS, verbose=False)["input_ids"]
        tokenizer.model_max_length = min(tokenizer.model_max_length, _MAX_TOKENS)
        return [ids, tokenizer(_TEXTS, truncation=True)["input_ids"]]

    for file in ("tokenizer.json", *files):
        assert differences(tmp_path / file, expected, actual, every_run=every_run) == [], file
