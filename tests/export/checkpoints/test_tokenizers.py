"""A bundle's tokenizer gives the ids of `AutoTokenizer`, or the export refuses the checkpoint and names the setting."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, normalizers
from transformers import AutoTokenizer, DistilBertConfig, DistilBertModel

from headwaiter_export.checkpoints.families.family import TokenInput
from headwaiter_export.checkpoints.families.model_types import FAMILIES, TOKENIZER_CLASSES
from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.checkpoints.tokenizers.classes import read_tokenizer_file
from headwaiter_export.checkpoints.tokenizers.comparison import check_tokenizer
from tests.checkpoints import save_bert, save_tokenizer, write_json
from tests.documents import MODELS, blocks
from tests.export.family_checkpoints import save_family
from tests.export.helpers import assert_checkpoint_refused, edit_json
from tests.export.tokenizer_cases import ADDED, CASES, DECLARED, FAST, XLM, save_case
from tests.export.tokenizer_folders import (
    BERT_TOKENS,
    byte_level_bpe,
    edited,
    gemma,
    json_of,
    llama,
    mpnet,
    qwen2,
    random_texts,
    t5,
    unigram,
    with_added,
    with_token_type,
    word_level,
    word_piece,
)

VOCABULARY_SIZE = 1000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT checkpoint without a tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    save_bert(folder, vocab_size=VOCABULARY_SIZE, num_hidden_layers=1)
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
    transformers.T5EncoderModel  # noqa: B018 - transformers imports a class when it is first used
    monkeypatch.setitem(sys.modules, "transformers", None)


@pytest.mark.parametrize("name", CASES)
def test_ids_equal_those_of_auto_tokenizer(name: str, model: Path, tmp_path: Path) -> None:
    assert differences(save_case(name, model, tmp_path / "model"), 200) == []


def test_every_family_of_texts_has_a_tokenizer_class() -> None:
    assert {name for name, family in FAMILIES.items() if isinstance(family.input, TokenInput)} == set(TOKENIZER_CLASSES)


def test_a_family_whose_tokenizer_cannot_be_built_is_refused_unless_the_checkpoint_names_another(
    tmp_path: Path,
) -> None:
    save_family(tmp_path, "RoFormer", vocab_size=VOCABULARY_SIZE)
    word_piece().save(str(tmp_path / "tokenizer.json"))
    assert_checkpoint_refused(tmp_path, "tokenizer_class", "PreTrainedTokenizerFast")
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": FAST})
    assert differences(tmp_path, 50) == []


def test_a_class_that_transformers_ignores_is_ignored(tmp_path: Path) -> None:
    save_family(tmp_path, "XLMRobertaXL", vocab_size=VOCABULARY_SIZE)
    unigram(normalizers.NFKC()).save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": XLM})
    assert differences(tmp_path, 200) == []


@pytest.mark.parametrize(
    ("name", "tokenizer", "settings"),
    [
        ("ModernBert", byte_level_bpe(), {"tokenizer_class": FAST}),
        # transformers ignores this class for this family.
        ("ModernBert", byte_level_bpe(), {"tokenizer_class": "BertTokenizer"}),
        ("NomicBert", word_piece(lowercase=False), {}),
        ("NomicBert", word_piece(lowercase=False), {"tokenizer_class": "BertTokenizer", "do_lower_case": False}),
        ("Gte", unigram(normalizers.NFKC()), {}),
        ("Gte", word_piece(), {"tokenizer_class": "BertTokenizer"}),
        ("Qwen3", qwen2(), {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "unk_token": None}),
        ("Qwen3", qwen2(), {"add_prefix_space": True}),
        ("Qwen3", qwen2(), {"add_prefix_space": None}),
        ("Qwen3", qwen2(), {"add_bos_token": False, "add_eos_token": False}),
        ("Qwen3", qwen2(), {"add_bos_token": True, "add_eos_token": True, "bos_token": "<s>"}),
        ("Qwen3", byte_level_bpe(), {"tokenizer_class": "Qwen2TokenizerFast"}),
        ("Gemma3", gemma(), {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "mask_token": "<mask>"}),
        (
            "Gemma3",
            edited(gemma(), normalizer=None, pre_tokenizer=None),
            {"extra_special_tokens": {"boi_token": "[B]"}},
        ),
        ("Llama", byte_level_bpe(), {"tokenizer_class": FAST}),
        ("EuroBert", byte_level_bpe(), {"tokenizer_class": FAST}),
        ("EuroBert", byte_level_bpe(), {}),
        ("Llama", llama(), {}),
        ("Llama", llama(), {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "legacy": False}),
        ("Llama", llama(), {"tokenizer_class": "LlamaTokenizerFast", "legacy": True, "add_eos_token": True}),
        ("Llama", llama(), {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False, "unk_token": "<pad>"}),
        ("Llama", with_added(llama()), {"tokenizer_class": "LlamaTokenizer", "legacy": None, "add_prefix_space": None}),
        ("Llama", byte_level_bpe(), {"tokenizer_class": "LlamaTokenizer"}),
        ("Mistral", llama(), {"tokenizer_class": "LlamaTokenizer", "legacy": False}),
        ("Mistral", llama(), {}),
        ("Qwen3", llama(), {"tokenizer_class": "LlamaTokenizer"}),
    ],
    ids=[
        *("modernbert", "modernbert ignores the class", "nomic", "nomic cased", "gte multilingual", "gte english"),
        *("qwen3", "qwen3 with a prefix", "qwen3 with null", "qwen3, tokens off", "qwen3, tokens on"),
        *("qwen3 without tokens", "gemma", "gemma without steps", "llama", "eurobert", "eurobert without class"),
        *("llama without class", "llama 2", "llama 2 legacy", "llama 2 without prefix", "llama 2 with added tokens"),
        *("llama 3", "mistral", "mistral without class", "qwen3 with a class of llama"),
    ],
)
def test_ids_of_modern_families_equal_those_of_auto_tokenizer(
    name: str, tokenizer: Tokenizer, settings: dict[str, Any], tmp_path: Path
) -> None:
    kind = ("TextModel", "Gemma3TextConfig") if name == "Gemma3" else ()
    save_family(tmp_path, name, *kind, vocab_size=VOCABULARY_SIZE, pad_token_id=0, num_key_value_heads=4)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path / "tokenizer_config.json", settings)
    assert differences(tmp_path, 100) == []


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
@pytest.mark.parametrize(
    ("file", "field"),
    [
        ("special_tokens_map.json", "eos_token"),
        ("special_tokens_map.json", "image_token"),
        ("tokenizer_config.json", "eos_token"),
        ("tokenizer_config.json", "added_tokens_decoder"),
    ],
)
def test_the_special_tokens_of_qwen2_lose_their_flags_as_by_auto_tokenizer(
    file: str, field: str, flag: str, tmp_path: Path
) -> None:
    save_family(tmp_path, "Qwen3", vocab_size=VOCABULARY_SIZE, num_key_value_heads=4)
    qwen2().save(str(tmp_path / "tokenizer.json"))
    token = {**ADDED, "content": "[NEW]", flag: True}
    if field == "added_tokens_decoder":
        named: dict[str, Any] = {"eos_token": "[NEW]", field: {"502": token}}
    else:
        named = {field: {"__type": "AddedToken", **token} if file == "tokenizer_config.json" else token}
    write_json(tmp_path / file, named)
    assert differences(tmp_path, 200) == []


@pytest.mark.parametrize(
    ("name", "tokenizer", "files"),
    [
        ("Bert", word_piece(), {}),
        ("Bert", word_piece(lowercase=False), {"tokenizer_config.json": {"do_lower_case": False}}),
        ("Bert", word_piece(), {"special_tokens_map.json": {"mask_token": "[NEW]"}, "added_tokens.json": {"a": 285}}),
        ("Bert", word_piece(), {"tokenizer_config.json": {"added_tokens_decoder": DECLARED, "unk_token": "[MASK]"}}),
        ("DistilBert", word_piece(), {"tokenizer_config.json": {"tokenizer_class": "DistilBertTokenizer"}}),
        ("Electra", word_piece(), {}),
        ("MPNet", mpnet(), {}),
        ("Gte", word_piece(), {"tokenizer_config.json": {"tokenizer_class": "BertTokenizerFast"}}),
    ],
)
def test_ids_of_a_vocabulary_in_lines_equal_those_of_auto_tokenizer(
    name: str, tokenizer: Tokenizer, files: dict[str, Any], tmp_path: Path
) -> None:
    sizes = {"dim": 32, "n_heads": 4, "n_layers": 1, "hidden_dim": 64} if name == "DistilBert" else {}
    save_family(tmp_path, name, "Model", "", vocab_size=VOCABULARY_SIZE, pad_token_id=1, **sizes)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in vocabulary), encoding="utf-8")
    for file, content in files.items():
        write_json(tmp_path / file, content)
    assert differences(tmp_path, 200) == []
    # With transformers, the export compares the ids itself.
    assert read_checkpoint(tmp_path).text is not None


def test_a_vocabulary_in_lines_of_another_class_is_not_a_tokenizer(tmp_path: Path) -> None:
    save_family(tmp_path, "RoFormer")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    assert read_checkpoint(tmp_path).text is None


@pytest.mark.parametrize("kind", ["tokenizer.json", "vocab.txt"])
def test_a_tokenizer_of_a_few_tokens_is_not_that_of_a_large_vocabulary(kind: str, tmp_path: Path) -> None:
    save_bert(tmp_path, vocab_size=30522, num_hidden_layers=1)
    if kind == "vocab.txt":
        (tmp_path / kind).write_text("\n".join(BERT_TOKENS))
    else:
        models_json = {**json_of(word_piece()), "added_tokens": []}
        models_json["model"]["vocab"] = {token: number for number, token in enumerate(BERT_TOKENS)}
        write_json(tmp_path / kind, models_json)
    assert_checkpoint_refused(tmp_path, kind, "5 tokens", "30522 ids")


@pytest.mark.parametrize("setting", ["vocab", "gguf_file"])
def test_a_file_that_the_settings_name_is_refused(setting: str, tmp_path: Path) -> None:
    save_bert(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(BERT_TOKENS))
    write_json(tmp_path / "tokenizer_config.json", {setting: "../other"})
    assert_checkpoint_refused(tmp_path, f"{setting} '../other'")


def save_t5(folder: Path) -> None:
    """Save the encoder of a T5 with its tokenizer."""
    sizes: dict[str, Any] = {"d_kv": 8, "d_ff": 64, "d_model": 32, "num_heads": 4, "num_layers": 1}
    save_family(folder, "T5", "EncoderModel", **{**sizes, "vocab_size": VOCABULARY_SIZE})
    t5().save(str(folder / "tokenizer.json"))


SENTINELS = [f"<extra_id_{number}>" for number in range(100)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tokenizer_class": "T5Tokenizer", "extra_ids": 100, "additional_special_tokens": SENTINELS},
        {"tokenizer_class": "T5TokenizerFast", "extra_ids": 10, "additional_special_tokens": SENTINELS[:10]},
        {"tokenizer_class": "T5Tokenizer", "add_prefix_space": False, "eos_token": "<pad>"},
        {"extra_ids": 100, "extra_special_tokens": SENTINELS},
        {"tokenizer_class": FAST},
    ],
)
def test_ids_of_t5_equal_those_of_auto_tokenizer(settings: dict[str, Any], tmp_path: Path) -> None:
    save_t5(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", settings)
    assert differences(tmp_path, 100) == []


def test_a_t5_as_transformers_saves_it_has_the_ids_of_auto_tokenizer(tmp_path: Path) -> None:
    save_t5(tmp_path)
    AutoTokenizer.from_pretrained(str(tmp_path)).save_pretrained(tmp_path)
    assert differences(tmp_path, 100) == []


@pytest.mark.parametrize(
    "settings", [{"extra_ids": 50}, {"additional_special_tokens": ["[NEW]"]}, {"extra_ids": "all"}]
)
@pytest.mark.usefixtures("no_transformers")
def test_a_t5_without_its_sentinels_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    save_t5(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", settings)
    assert_checkpoint_refused(tmp_path, "extra_ids")


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
    from headwaiter_export.checkpoints.tokenizers.comparison import check_texts

    folder = save_case("WordPiece uncased", model, tmp_path / "model")
    other = AutoTokenizer.from_pretrained(str(save_case("WordPiece, accents kept", model, tmp_path / "other")))
    texts = check_texts(())
    pairs = zip(texts, bundle_ids(folder, texts), other(texts)["input_ids"], strict=True)
    text, found, expected = next(pair for pair in pairs if pair[1] != pair[2])
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: other)
    assert_checkpoint_refused(folder, str(folder), repr(text), str(found), str(expected), transformers.__version__)


def test_ids_of_added_tokens_are_those_of_the_file_as_by_auto_tokenizer(model: Path, tmp_path: Path) -> None:
    folder = save_case("WordPiece, tokens of tokenizer.json", model, tmp_path / "model")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"][-1]["id"] = 0
    write_json(folder / "tokenizer.json", content)
    assert differences(folder, 200) == []


@pytest.mark.usefixtures("no_transformers")
@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
        {"post_processor": {**json_of(unigram())["post_processor"], "special_tokens": {}}},
    ],
)
def test_a_panic_of_the_library_is_one_line(change: dict[str, Any], model: Path, tmp_path: Path) -> None:
    folder = save_case("Unigram kept", model, tmp_path / "model")
    write_json(folder / "tokenizer.json", {**json_of(unigram()), **change})
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(folder)
    assert "tokenizer.json" in str(error.value)
    assert "\n" not in str(error.value)


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
        ({"truncation_side": "left"}, ["truncation side 'left'", "truncation_side", "'right'"]),
        ({"truncation_side": None}, ["truncation side None"]),
        ({"model_specific_special_tokens": {"a_token": "bread"}}, ["model_specific_special_tokens"]),
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


def test_the_end_that_tokenizer_json_drops_is_that_of_auto_tokenizer(model: Path, tmp_path: Path) -> None:
    folder = save_case("WordPiece uncased", model, tmp_path / "model")
    truncation = {"direction": "Left", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
    edited(word_piece(), truncation=truncation).save(str(folder / "tokenizer.json"))
    assert AutoTokenizer.from_pretrained(str(folder)).truncation_side == "left"
    assert_checkpoint_refused(folder, "tokenizer.json", "left", "truncation_side")
    edit_json(folder / "tokenizer_config.json", truncation_side="right")
    assert AutoTokenizer.from_pretrained(str(folder)).truncation_side == "right"
    assert read_checkpoint(folder).text is not None


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
    edit_json(folder / "tokenizer_config.json", tokenizer_class="LxmertTokenizer", model_max_length=20)
    assert_checkpoint_refused(folder, "tokenizer_class 'LxmertTokenizer'", "docs/models.md")
    texts = random_texts(50)
    expected = reference_ids(folder, texts)
    (block,) = (block for block in blocks(MODELS, "python") if "PreTrainedTokenizerFast" in block)
    exec(compile(block, MODELS.name, "exec"), {})
    assert bundle_ids(folder, texts) == reference_ids(folder, texts) == expected
    text = read_checkpoint(folder).text
    assert text is not None
    assert text.max_tokens == 20


def _saved_tokenizer(folder: Path, **parts: Any) -> Path:
    """Save a small BERT tokenizer with other parts, and return its path."""
    save_tokenizer(folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **parts}))
    return path


def test_a_panic_while_a_tokenizer_is_read_is_an_error_of_the_checkpoint(tmp_path: Path) -> None:
    path = _saved_tokenizer(tmp_path, normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})
    with pytest.raises(CheckpointError, match="cannot be read") as refused:
        read_tokenizer_file(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("parts", "fact"),
    [
        (
            {
                "pre_tokenizer": {
                    "type": "Split",
                    "pattern": {"Regex": "(q+)+$"},
                    "behavior": "Isolated",
                    "invert": False,
                }
            },
            "'(q+)+$'",
        ),
        (
            {
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [{"type": "Replace", "pattern": {"String": "q"}, "content": "qq"}] * 40,
                }
            },
            "256 times",
        ),
        (
            {
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}],
                    "pair": [],
                    "special_tokens": {},
                }
            },
            "no entry found",
        ),
    ],
)
def test_a_tokenizer_that_costs_too_much_or_panics_is_refused_with_its_file(
    parts: dict[str, Any], fact: str, tmp_path: Path
) -> None:
    path = _saved_tokenizer(tmp_path, **parts)
    tokenizer = read_tokenizer_file(path)
    tokenizer.no_padding()
    with pytest.raises(CheckpointError) as refused:
        check_tokenizer(tokenizer, path)
    message = str(refused.value)
    assert str(path) in message
    assert fact in message
    assert "\n" not in message
