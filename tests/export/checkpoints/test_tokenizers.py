"""A bundle's tokenizer gives the ids of `AutoTokenizer`, or the export refuses the checkpoint and names the setting."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, decoders, normalizers
from transformers import AutoTokenizer, BertTokenizer

from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.checkpoints.texts import TextConfig, read_text
from headwaiter_export.checkpoints.tokenizers import comparison
from headwaiter_export.checkpoints.tokenizers.auto_tokenizer import read_checkpoint_tokenizer
from headwaiter_export.checkpoints.tokenizers.comparison import check_texts
from headwaiter_export.config.encoder import EncoderConfig
from tests.support.checkpoints import write_json
from tests.support.documents import EXPORT_CHECKPOINT, blocks
from tests.support.export.helpers import assert_mentions, edit_json
from tests.support.export.tokenizer_cases import CASES, LINES, Case, config, save_case
from tests.support.export.tokenizer_folders import (
    BERT_TOKENS,
    byte_level_bpe,
    edited,
    json_of,
    random_texts,
    unigram,
    with_token_type,
    word_level,
    word_piece,
)

VOCABULARY_SIZE = 1000
SLOW = {"type": "Split", "pattern": {"Regex": "(q+)+$"}, "behavior": "Isolated", "invert": False}
_NORMALIZERS: dict[str, Any] = {
    "none": None,
    "BertNormalizer": normalizers.BertNormalizer(lowercase=False, strip_accents=False),
    "Sequence": normalizers.Sequence([normalizers.Replace("Ä", "b"), normalizers.StripAccents()]),
    "Lowercase": normalizers.Lowercase(),
    # Upper-case letters are replaced before texts become lower case.
    "Lowercase at the end": normalizers.Sequence([normalizers.Replace("Ä", "b"), normalizers.Lowercase()]),
}


def read(folder: Path, vocabulary_size: int = VOCABULARY_SIZE) -> TextConfig | None:
    """Read the tokenizer of a folder that has no weights."""
    config = EncoderConfig(vocabulary_size=vocabulary_size, d_model=8, heads=1, layers=1, d_ff=8, max_tokens=64)
    saved = read_checkpoint_tokenizer(folder, CheckpointJson.read(folder / "config.json"))
    return read_text(folder, saved, config, [])


def assert_refused(folder: Path, *facts: str, vocabulary_size: int = VOCABULARY_SIZE) -> None:
    with pytest.raises(CheckpointError) as error:
        read(folder, vocabulary_size)
    assert_mentions(error.value, *facts)
    assert "\n" not in str(error.value)


def bundle_ids(folder: Path, texts: list[str]) -> list[list[int]]:
    text = read(folder)
    assert text is not None
    return [encoding.ids for encoding in Tokenizer.from_str(text.tokenizer).encode_batch(texts)]


def reference_ids(folder: Path, texts: list[str]) -> list[list[int]]:
    ids: list[list[int]] = AutoTokenizer.from_pretrained(str(folder))(texts)["input_ids"]
    return ids


def differences(folder: Path, count: int = 200) -> list[tuple[str, list[int], list[int]]]:
    """Return the random texts whose ids in a bundle differ from AutoTokenizer's, with both ids."""
    texts = random_texts(count)
    with pytest.MonkeyPatch.context() as monkeypatch:
        # The cost of these tokenizers is the subject of another test.
        monkeypatch.setattr(comparison, "cost_problem", lambda _: None)
        found = bundle_ids(folder, texts)
    rows = zip(texts, found, reference_ids(folder, texts), strict=True)
    return [(text, found, expected) for text, found, expected in rows if found != expected]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_ids_equal_those_of_auto_tokenizer(case: Case, tmp_path: Path) -> None:
    assert differences(save_case(case, tmp_path)) == []


@pytest.mark.parametrize("case", LINES.values(), ids=LINES)
def test_ids_of_a_vocabulary_in_lines_equal_those_of_auto_tokenizer(case: Case, tmp_path: Path) -> None:
    assert differences(save_case(case, tmp_path, lines=True)) == []


@pytest.mark.parametrize(
    "name",
    [
        *("WordPiece uncased", "WordPiece of MPNet", "byte-level BPE", "byte-level BPE kept", "Unigram"),
        *("WordLevel cased", "Qwen3", "Gemma 3", "Llama 2", "T5"),
    ],
)
def test_a_tokenizer_of_each_kind_is_cheap_enough(name: str, tmp_path: Path) -> None:
    assert read(save_case(CASES[name], tmp_path)) is not None


def test_a_class_that_transformers_cannot_build_is_refused_unless_the_checkpoint_names_another(tmp_path: Path) -> None:
    save_case((word_piece, "roformer", {}), tmp_path)
    assert_refused(tmp_path, "config.json", "model_type 'roformer'", "rjieba", "tokenizer_class")


def test_a_vocabulary_in_lines_that_transformers_cannot_use_is_refused(tmp_path: Path) -> None:
    save_case((word_piece, "roformer", {}), tmp_path, lines=True)
    assert_refused(tmp_path, str(tmp_path), "rjieba", "remove its files")


@pytest.mark.parametrize("case", [(unigram, "xlm-roberta", {}), (word_piece, "bert", config("BertJapaneseTokenizer"))])
def test_a_vocabulary_in_lines_of_a_class_that_a_bundle_cannot_hold_is_not_a_tokenizer(
    case: Case, tmp_path: Path
) -> None:
    assert read(save_case(case, tmp_path, lines=True)) is None


def test_the_bundle_keeps_what_the_file_has_of_steps_that_change_no_ids(tmp_path: Path) -> None:
    tokenizer = word_piece()
    tokenizer.decoder = decoders.Fuse()
    found = read(save_case((lambda: tokenizer, "bert", {}), tmp_path))
    assert found is not None
    assert json.loads(found.tokenizer)["decoder"] == {"type": "Fuse"}
    kept = read(save_case(CASES["CLIP, kept"], tmp_path / "clip"))
    assert kept is not None
    assert [json.loads(kept.tokenizer)[step] for step in ("decoder", "post_processor")] == [None, None]


@pytest.mark.parametrize("kind", ["tokenizer.json", "vocab.txt"])
def test_a_tokenizer_of_a_few_tokens_is_not_that_of_a_large_vocabulary(kind: str, tmp_path: Path) -> None:
    vocabulary = {token: number for number, token in enumerate(BERT_TOKENS)}
    model = {**json_of(word_piece())["model"], "vocab": vocabulary}
    case: Case = (lambda: edited(word_piece(), added_tokens=[], model=model), "bert", {})
    save_case(case, tmp_path, lines=kind == "vocab.txt")
    assert_refused(tmp_path, kind, "5 tokens", "30522 ids", vocabulary_size=30522)


@pytest.mark.parametrize("setting", ["vocab", "gguf_file"])
def test_a_file_that_the_settings_name_is_refused(setting: str, tmp_path: Path) -> None:
    save_case((word_piece, "bert", config(**{setting: "../other"})), tmp_path, lines=True)
    assert_refused(tmp_path, f"{setting} '../other'")


def test_a_tokenizer_as_transformers_saves_it_has_the_ids_of_auto_tokenizer(tmp_path: Path) -> None:
    save_case(CASES["T5"], tmp_path)
    AutoTokenizer.from_pretrained(str(tmp_path)).save_pretrained(tmp_path)
    assert differences(tmp_path) == []


def test_a_distilbert_without_settings_is_lower_cased(tmp_path: Path) -> None:
    save_case(CASES["DistilBERT, no settings"], tmp_path)
    assert bundle_ids(tmp_path, ["BREAD"]) == bundle_ids(tmp_path, ["bread"])


@pytest.mark.parametrize("name", [*_NORMALIZERS])
def test_texts_become_lower_case_where_sentence_transformers_makes_them_so(name: str, folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.normalizer = _NORMALIZERS[name]
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **settings})
    edit_json(folder / "sentence_bert_config.json", do_lower_case=True)
    text = read_checkpoint(folder).text
    assert text is not None
    texts = ["rain", "Rain", "TABLE Äb STONES", "[SEP] A[sep]B", *random_texts(100)]
    found = [encoding.ids for encoding in Tokenizer.from_str(text.tokenizer).encode_batch(texts)]
    reference = SentenceTransformer(str(folder), device="cpu").tokenizer
    assert found == reference(texts)["input_ids"]
    assert found[0] == found[1]


def test_lower_case_is_refused_with_a_tokenizer_of_proteins(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    save_case(LINES["ESM"], folder, lines=True)
    edit_json(folder / "sentence_bert_config.json", do_lower_case=True)
    config = EncoderConfig(vocabulary_size=VOCABULARY_SIZE, d_model=8, heads=1, layers=1, d_ff=8, max_tokens=64)
    saved = read_checkpoint_tokenizer(folder, CheckpointJson.read(folder / "config.json"))
    with pytest.raises(CheckpointError) as error:
        read_text(folder, saved, config, [], has_modules=True)
    assert_mentions(error.value, "do_lower_case True", "EsmTokenizer")


def test_ids_that_a_class_changes_in_python_are_refused_with_the_text_and_both_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, (text, *_) = save_case(CASES["WordPiece uncased"], tmp_path), check_texts(())
    ids, encode = bundle_ids(folder, [text])[0], BertTokenizer._encode_plus

    def reversed_ids(*arguments: Any, **options: Any) -> Any:
        encoded = encode(*arguments, **options)
        encoded["input_ids"] = [ids[::-1] for ids in encoded["input_ids"]]
        return encoded

    monkeypatch.setattr(BertTokenizer, "_encode_plus", reversed_ids)
    assert_refused(folder, str(folder), repr(text), str(ids), str(ids[::-1]), transformers.__version__)


def test_ids_of_added_tokens_are_those_of_the_file_as_by_auto_tokenizer(tmp_path: Path) -> None:
    folder = save_case(CASES["WordPiece, tokens of tokenizer.json"], tmp_path)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"][-1]["id"] = 0
    write_json(folder / "tokenizer.json", content)
    assert differences(folder, 200) == []


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
        {"post_processor": {**json_of(unigram())["post_processor"], "special_tokens": {}}},
    ],
)
def test_a_panic_of_the_library_is_one_line(change: dict[str, Any], tmp_path: Path) -> None:
    folder = save_case(CASES["Unigram kept"], tmp_path)
    write_json(folder / "tokenizer.json", {**json_of(unigram()), **change})
    assert_refused(folder, "tokenizer.json")


def test_a_tokenizer_that_transformers_cannot_use_is_refused(tmp_path: Path) -> None:
    folder = save_case(CASES["WordPiece uncased"], tmp_path)
    edit_json(folder / "tokenizer_config.json", padding_side="top")
    assert_refused(folder, "tokenizer_config.json", "padding_side 'top'", "AutoTokenizer", transformers.__version__)


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"tokenizer_class": "BertJapaneseTokenizer"}, ["tokenizer_class 'BertJapaneseTokenizer'"]),
        ({"tokenizer_class": "RobertaTokenizer"}, ["tokenizer.json", "WordPiece", "RobertaTokenizer", "BPE"]),
        ({"tokenizer_class": "T5Tokenizer"}, ["tokenizer_class 'T5Tokenizer'"]),
        ({"auto_map": {"AutoTokenizer": ["code.A", None]}}, ["auto_map"]),
        ({"init_inputs": ["x"]}, ["init_inputs ['x']"]),
        ({"fast_tokenizer_files": ["tokenizer.4.0.0.json"]}, ["fast_tokenizer_files"]),
        ({"split_special_tokens": True}, ["split_special_tokens True"]),
        ({"truncation_side": "left"}, ["truncation side 'left'", "truncation_side", "'right'"]),
        ({"do_lower_case": "yes"}, ["do_lower_case 'yes'", "bool"]),
        ({"cls_token": 5}, ["cls_token 5", "str"]),
        ({"unk_token": {"content": "[UNK]", "lstrip": 1}}, ["unk_token"]),
        ({"additional_special_tokens": "[NEW]"}, ["additional_special_tokens '[NEW]'", "list"]),
    ],
)
def test_a_setting_that_cannot_be_applied_is_named(settings: dict[str, Any], facts: list[str], tmp_path: Path) -> None:
    folder = save_case(CASES["WordPiece uncased"], tmp_path)
    edit_json(folder / "tokenizer_config.json", **settings)
    assert_refused(folder, "tokenizer_config.json", *facts)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("added_tokens.json", b"[1"),
        ("added_tokens.json", b'{"[NEW]": "x"}'),
        ("chat_template.jinja", b"\xff"),
        ("tokenizer_config.json", b'{"tokenizer_class": "BertTokenizer", "do_lower_case": "x", "strip_accents": "x"}'),
    ],
)
def test_a_file_that_cannot_be_applied_is_named(name: str, content: bytes, tmp_path: Path) -> None:
    folder = save_case(CASES["WordPiece uncased"], tmp_path)
    (folder / name).write_bytes(content)
    assert_refused(folder, str(folder / name))


def test_a_link_to_a_missing_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = save_case(CASES["WordPiece uncased"], tmp_path)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to("missing")
    assert_refused(folder, str(folder / "tokenizer.json"), "missing")


def test_transformers_prints_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = save_case(CASES["WordPiece uncased"], tmp_path)
    # The type of GTE's code, which transformers lacks.
    edit_json(folder / "config.json", model_type="new")
    # The callers of the export keep the level that they have chosen.
    verbosity = transformers.logging.get_verbosity()
    assert read(folder) is not None
    assert caplog.messages == []
    assert transformers.logging.get_verbosity() == verbosity


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"unk_token": "absent"}, ["tokenizer.json"]),
        ({"extra_special_tokens": [f"[{i}]" for i in range(VOCABULARY_SIZE)]}, [f"{VOCABULARY_SIZE} ids"]),
    ],
)
def test_tokens_that_do_not_fit_are_refused(settings: dict[str, Any], facts: list[str], tmp_path: Path) -> None:
    folder = save_case(CASES["WordPiece uncased"], tmp_path)
    edit_json(folder / "tokenizer_config.json", **settings)
    assert_refused(folder, *facts)


@pytest.mark.parametrize("name", ["tokenizer_file", "model_max_length", "split_special_tokens"])
def test_a_setting_beside_the_tokens_of_the_older_file_is_named(name: str, tmp_path: Path) -> None:
    folder = save_case(CASES["WordPiece, older token files"], tmp_path)
    edit_json(folder / "special_tokens_map.json", **{name: 12})
    assert_refused(folder, "special_tokens_map.json", f"{name} 12", "tokenizer_config.json")
    edit_json(folder / "tokenizer_config.json", added_tokens_decoder={})
    assert read(folder) is not None  # transformers ignores the older file.


def test_the_end_that_tokenizer_json_drops_is_that_of_auto_tokenizer(tmp_path: Path) -> None:
    folder = save_case(CASES["WordPiece uncased"], tmp_path)
    truncation = {"direction": "Left", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
    edited(word_piece(), truncation=truncation).save(str(folder / "tokenizer.json"))
    assert AutoTokenizer.from_pretrained(str(folder)).truncation_side == "left"
    assert_refused(folder, str(folder), "left", "truncation_side")
    edit_json(folder / "tokenizer_config.json", truncation_side="right")
    assert AutoTokenizer.from_pretrained(str(folder)).truncation_side == "right"
    assert read(folder) is not None


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
        # It costs too much.
        (lambda: edited(word_level(lowercase=True), pre_tokenizer=SLOW), ["'(q+)+$'"]),
    ],
)
def test_a_tokenizer_that_cannot_be_reproduced_is_refused(
    build: Callable[[], Tokenizer], facts: list[str], tmp_path: Path
) -> None:
    folder = save_case(CASES["WordLevel cased"], tmp_path)
    build().save(str(folder / "tokenizer.json"))
    assert_refused(folder, "tokenizer.json", *facts)


def test_the_python_of_the_page_saves_a_tokenizer_that_can_be_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("path/to").mkdir(parents=True)
    folder = save_case(CASES["WordPiece, declared tokens"], Path("path/to/checkpoint"))
    code = {"AutoTokenizer": [None, "code.A"]}
    edit_json(folder / "tokenizer_config.json", model_max_length=20, auto_map=code)
    assert_refused(folder, "auto_map", "docs/how-to/export-a-checkpoint.md")
    texts = random_texts(50)
    expected = reference_ids(folder, texts)
    (block,) = (block for block in blocks(EXPORT_CHECKPOINT, "python") if "PreTrainedTokenizerFast" in block)
    exec(compile(block, EXPORT_CHECKPOINT.name, "exec"), {})
    assert bundle_ids(folder, texts) == reference_ids(folder, texts) == expected
    text = read(folder)
    assert text is not None
    assert text.max_tokens == 20
