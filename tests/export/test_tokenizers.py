"""A bundle's tokenizer gives the ids of `AutoTokenizer`, or the export refuses the checkpoint and names the setting."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, normalizers
from transformers import AutoTokenizer, DistilBertConfig, DistilBertModel

from headwaiter_export.checkpoints import read_checkpoint
from tests.checkpoints import save_bert, write_json
from tests.documents import MODELS, blocks
from tests.export.helpers import assert_checkpoint_refused, edit_json
from tests.export.tokenizer_folders import (
    byte_level_bpe,
    compiled_normalizer,
    edited,
    json_of,
    mpnet,
    random_texts,
    unigram,
    with_added,
    with_token_type,
    word_level,
    word_piece,
)

Files = dict[str, dict[str, Any]]

VOCABULARY_SIZE = 1000
ADDED: dict[str, Any] = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT checkpoint without a tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    save_bert(folder, vocab_size=VOCABULARY_SIZE, num_hidden_layers=1)
    return folder


def config(tokenizer_class: str | None = None, **settings: Any) -> Files:
    chosen = {} if tokenizer_class is None else {"tokenizer_class": tokenizer_class}
    return {"tokenizer_config.json": {**chosen, **settings}}


DECLARED = {
    "4": {**ADDED, "content": "[MASK]", "lstrip": True, "special": True},
    "400": {**ADDED, "content": "Added", "normalized": True},
    "401": {**ADDED, "content": "[NEW]", "rstrip": True},
}
FAST = "PreTrainedTokenizerFast"
XLM = "XLMRobertaTokenizerFast"
CASES: dict[str, tuple[Callable[[], Tokenizer], str, Files]] = {
    "WordPiece uncased, no settings": (word_piece, "bert", {}),
    "WordPiece uncased": (word_piece, "bert", config("BertTokenizer", do_lower_case=True)),
    "WordPiece uncased, settings cased": (word_piece, "bert", config("BertTokenizer", do_lower_case=False)),
    "WordPiece cased": (lambda: word_piece(lowercase=False), "bert", config("BertTokenizerFast", do_lower_case=False)),
    "WordPiece cased, no settings": (lambda: word_piece(lowercase=False), "bert", {}),
    "WordPiece cased, class in config.json": (
        lambda: word_piece(lowercase=False),
        "bert",
        {"config.json": {"tokenizer_class": "BertTokenizer"}},
    ),
    "WordPiece, accents kept": (word_piece, "bert", config(strip_accents=False)),
    "WordPiece cased, accents stripped": (word_piece, "bert", config(do_lower_case=False, strip_accents=True)),
    "WordPiece, Chinese not split": (word_piece, "bert", config("DistilBertTokenizer", tokenize_chinese_chars=False)),
    "WordPiece, other normalizer": (
        lambda: edited(word_piece(), normalizer={"type": "NFC"}, pre_tokenizer={"type": "WhitespaceSplit"}),
        "bert",
        {},
    ),
    "WordPiece, short words": (
        lambda: edited(word_piece(), model={**json_of(word_piece())["model"], "max_input_chars_per_word": 3}),
        "bert",
        {},
    ),
    "WordPiece, other special tokens": (
        word_piece,
        "bert",
        config(cls_token="[MASK]", sep_token="[UNK]", unk_token="[PAD]", mask_token=None),
    ),
    "WordPiece, tokens of tokenizer.json": (lambda: with_added(word_piece()), "bert", config()),
    "WordPiece, declared tokens": (
        lambda: with_added(word_piece()),
        "bert",
        config(added_tokens_decoder=DECLARED, extra_special_tokens=["<extra>"]),
    ),
    "WordPiece, older token files": (
        word_piece,
        "bert",
        {
            **config(additional_special_tokens=["<extra>"]),
            "special_tokens_map.json": {
                "mask_token": {**ADDED, "content": "[MASK]", "lstrip": True},
                "image_token": "[NEW]",
            },
            "added_tokens.json": {"Added": 400, "[NEW]": 401},
        },
    ),
    "WordPiece of ELECTRA": (
        lambda: word_piece(lowercase=False),
        "bert",
        config("ElectraTokenizerFast", do_lower_case=True),
    ),
    "WordPiece of ERNIE, no settings": (lambda: word_piece(lowercase=False), "ernie", {}),
    "WordPiece of MPNet": (mpnet, "bert", config("MPNetTokenizer")),
    "WordPiece of MPNet, cased, accents stripped": (
        lambda: with_added(mpnet()),
        "bert",
        config("MPNetTokenizerFast", do_lower_case=False, strip_accents=True, mask_token="</s>"),
    ),
    "WordPiece kept": (lambda: with_added(word_piece(lowercase=False)), "bert", config(FAST, do_lower_case=True)),
    "byte-level BPE": (byte_level_bpe, "roberta", config("RobertaTokenizer")),
    "byte-level BPE, no settings": (lambda: byte_level_bpe(add_prefix_space=True), "roberta", {}),
    "byte-level BPE, space added": (byte_level_bpe, "roberta", config("RobertaTokenizerFast", add_prefix_space=True)),
    "byte-level BPE, mask and added tokens": (
        lambda: with_added(byte_level_bpe()),
        "roberta",
        config("RobertaTokenizer", mask_token={"__type": "AddedToken", **ADDED, "content": "<mask>", "lstrip": True}),
    ),
    "byte-level BPE with normalizer": (
        lambda: edited(byte_level_bpe(), normalizer={"type": "Lowercase"}),
        "roberta",
        config("RobertaTokenizer"),
    ),
    "byte-level BPE of data2vec, no settings": (lambda: byte_level_bpe(add_prefix_space=True), "data2vec-text", {}),
    "byte-level BPE kept": (
        lambda: edited(byte_level_bpe(add_prefix_space=True), normalizer={"type": "Lowercase"}),
        "bert",
        config(FAST, add_prefix_space=False, unk_token="<unk>", mask_token="<mask>", extra_special_tokens=["[NEW]"]),
    ),
    "Unigram": (unigram, "xlm-roberta", config("XLMRobertaTokenizer")),
    "Unigram of a BERT": (lambda: unigram(normalizers.NFKC()), "bert", config(XLM, model_max_length=512)),
    "Unigram compiled": (lambda: unigram(compiled_normalizer()), "xlm-roberta", {}),
    "Unigram compiled, then lower case": (
        lambda: unigram(normalizers.Sequence([compiled_normalizer(), normalizers.Lowercase()])),
        "xlm-roberta",
        config(add_prefix_space=False),
    ),
    "Unigram with added tokens": (lambda: with_added(unigram(compiled_normalizer())), "xlm-roberta", config(XLM)),
    "Unigram of CamemBERT": (lambda: with_added(unigram()), "camembert", config("CamembertTokenizer")),
    "Unigram of CamemBERT, other extra tokens": (
        unigram,
        "camembert",
        config(additional_special_tokens=["[NEW]"], bos_token="<pad>", unk_token="<mask>"),
    ),
    "Unigram kept": (lambda: unigram(normalizers.NFKC()), "bert", config(FAST)),
    "WordLevel cased": (lambda: word_level(lowercase=False), "bert", config(FAST, do_lower_case=True)),
    "WordLevel uncased with added tokens": (
        lambda: with_added(word_level(lowercase=True)),
        "bert",
        config("TokenizersBackend", do_lower_case=False, added_tokens_decoder=DECLARED),
    ),
}


def save_case(name: str, model: Path, folder: Path) -> Path:
    """Save a model with the tokenizer and the settings of a case."""
    build, model_type, files = CASES[name]
    shutil.copytree(model, folder)
    edit_json(folder / "config.json", model_type=model_type, **files.get("config.json", {}))
    build().save(str(folder / "tokenizer.json"))
    for file, content in files.items():
        if file != "config.json":
            write_json(folder / file, content)
    return folder


def bundle_ids(folder: Path, texts: list[str]) -> list[list[int]]:
    text = read_checkpoint(folder).text
    assert text is not None
    return [encoding.ids for encoding in Tokenizer.from_str(text.tokenizer).encode_batch(texts)]


def reference_ids(folder: Path, texts: list[str]) -> list[list[int]]:
    ids: list[list[int]] = AutoTokenizer.from_pretrained(str(folder))(texts)["input_ids"]
    return ids


def differences(folder: Path, count: int) -> list[tuple[str, list[int], list[int]]]:
    """Export without transformers, and return the random texts whose ids differ from AutoTokenizer's, with both ids."""
    texts = random_texts(count)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(sys.modules, "transformers", None)
        found = bundle_ids(folder, texts)
    rows = zip(texts, found, reference_ids(folder, texts), strict=True)
    return [(text, found, expected) for text, found, expected in rows if found != expected]


@pytest.fixture
def no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let imports of transformers fail, as where it is not installed."""
    monkeypatch.setitem(sys.modules, "transformers", None)


@pytest.mark.parametrize("name", CASES)
def test_ids_equal_those_of_auto_tokenizer(name: str, model: Path, tmp_path: Path) -> None:
    assert differences(save_case(name, model, tmp_path / "model"), 200) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_ids_of_5000_texts_equal_those_of_auto_tokenizer(name: str, model: Path, tmp_path: Path) -> None:
    assert differences(save_case(name, model, tmp_path / "model"), 5000) == []


def test_a_distilbert_without_settings_is_lower_cased_as_by_auto_tokenizer(tmp_path: Path) -> None:
    settings = {"dim": 32, "n_heads": 4, "n_layers": 1, "hidden_dim": 64, "max_position_embeddings": 16}
    model = DistilBertModel(DistilBertConfig(vocab_size=VOCABULARY_SIZE, **settings))
    model.save_pretrained(tmp_path)
    word_piece(lowercase=False).save(str(tmp_path / "tokenizer.json"))
    assert differences(tmp_path, 50) == []
    assert bundle_ids(tmp_path, ["BREAD"]) == bundle_ids(tmp_path, ["bread"])


def test_a_difference_from_auto_tokenizer_is_refused_with_the_text_and_both_ids(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headwaiter_export.tokenizer_check import check_texts

    folder = save_case("WordPiece uncased", model, tmp_path / "model")
    other = AutoTokenizer.from_pretrained(str(save_case("WordPiece, accents kept", model, tmp_path / "other")))
    texts = check_texts(())
    pairs = zip(texts, bundle_ids(folder, texts), other(texts)["input_ids"], strict=True)
    text, found, expected = next(pair for pair in pairs if pair[1] != pair[2])
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: other)
    assert_checkpoint_refused(folder, str(folder), repr(text), str(found), str(expected), transformers.__version__)


def test_a_tokenizer_that_transformers_cannot_use_is_refused(model: Path, tmp_path: Path) -> None:
    folder = save_case("WordPiece uncased", model, tmp_path / "model")
    edit_json(folder / "tokenizer_config.json", padding_side="top")
    assert_checkpoint_refused(folder, str(folder), "AutoTokenizer", "top")


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"tokenizer_class": "BertJapaneseTokenizer"}, ["tokenizer_class 'BertJapaneseTokenizer'", "BertTokenizer"]),
        ({"tokenizer_class": 1}, ["tokenizer_class 1", "BertTokenizer"]),
        ({"tokenizer_class": "RobertaTokenizer"}, ["tokenizer.json", "WordPiece", "RobertaTokenizer", "BPE"]),
        ({"auto_map": {"AutoTokenizer": ["code.A", None]}}, ["auto_map"]),
        ({"init_inputs": ["x"]}, ["init_inputs ['x']"]),
        ({"fast_tokenizer_files": ["tokenizer.4.0.0.json"]}, ["fast_tokenizer_files"]),
        ({"split_special_tokens": True}, ["split_special_tokens True"]),
        ({"do_lower_case": "yes"}, ["do_lower_case 'yes'", "true or false"]),
        ({"strip_accents": 1}, ["strip_accents 1", "true or false"]),
        ({"cls_token": None}, ["cls_token"]),
        ({"cls_token": 5}, ["cls_token 5", "string"]),
        ({"unk_token": {"content": "[UNK]", "lstrip": 1}}, ["unk_token", "lstrip"]),
        ({"unk_token": "absent"}, ["tokenizer.json"]),
        ({"additional_special_tokens": "[NEW]"}, ["additional_special_tokens '[NEW]'"]),
        ({"added_tokens_decoder": {"x": "y"}}, ["added_tokens_decoder"]),
        ({"extra_special_tokens": [f"[{i}]" for i in range(VOCABULARY_SIZE)]}, [f"{VOCABULARY_SIZE} ids"]),
    ],
)
@pytest.mark.usefixtures("no_transformers")
def test_a_setting_that_the_export_cannot_apply_is_named(
    settings: dict[str, Any], facts: list[str], model: Path, tmp_path: Path
) -> None:
    folder = save_case("WordPiece uncased", model, tmp_path / "model")
    edit_json(folder / "tokenizer_config.json", **settings)
    assert_checkpoint_refused(folder, *facts)


@pytest.mark.parametrize(
    ("build", "facts"),
    [
        (
            lambda: edited(byte_level_bpe(), model={**json_of(byte_level_bpe())["model"], "dropout": 0.5}),
            ["dropout 0.5"],
        ),
        (
            lambda: edited(
                word_level(lowercase=True), model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}
            ),
            [],
        ),
        (lambda: with_token_type(word_level(lowercase=True)), ["token types"]),
    ],
)
def test_a_tokenizer_that_cannot_be_reproduced_is_refused(
    build: Callable[[], Tokenizer], facts: list[str], model: Path, tmp_path: Path
) -> None:
    folder = save_case("WordLevel cased", model, tmp_path / "model")
    build().save(str(folder / "tokenizer.json"))
    assert_checkpoint_refused(folder, "tokenizer.json", *facts)


def test_the_python_of_the_page_saves_a_tokenizer_that_can_be_exported(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("path/to").mkdir(parents=True)
    folder = save_case("WordPiece, declared tokens", model, Path("path/to/checkpoint"))
    edit_json(folder / "tokenizer_config.json", tokenizer_class="MPNetTokenizer", model_max_length=20)
    assert_checkpoint_refused(folder, "tokenizer_class 'MPNetTokenizer'", "docs/models.md")
    texts = random_texts(50)
    expected = reference_ids(folder, texts)
    (block,) = (block for block in blocks(MODELS, "python") if "PreTrainedTokenizerFast" in block)
    exec(compile(block, MODELS.name, "exec"), {})
    assert bundle_ids(folder, texts) == reference_ids(folder, texts) == expected
    text = read_checkpoint(folder).text
    assert text is not None
    assert text.max_tokens == 20
