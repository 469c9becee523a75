"""Texts become the token ids of the checkpoint's own tokenizer, truncated only if requested."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import processors

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import PairTemplate
from headwaiter_proto.rules.errors import Failures, InferenceFailed, InvalidInput, SequenceTooLong
from headwaiter_proto.rules.sequences import MAX_BYTES_OF_ONE_TEXT
from headwaiter_server.inputs.tokenizer import BundleTokenizer, TokenizedText, TokenizeOptions, Truncation
from headwaiter_server.requests.threads import finish
from headwaiter_server.runtime.bundle import TOKENIZER, Bundle
from headwaiter_server.runtime.errors import BundleRefused
from tests.support.export.tokenizer_folders import word_piece
from tests.support.server.bundles import copy, read_manifest, sign, write_manifest

TEXTS = ["The bread is fresh.", "table for two, please", "a", "Rain falls on stones — ΑΒΓ 雨", "two\ntables\t"]
LONG = "The bread is fresh, please. " * 20
SIDES = {Truncation.LEFT: "left", Truncation.RIGHT: "right"}


@pytest.fixture(scope="session")
def tokenizer(text_bundle: Path) -> BundleTokenizer:
    return BundleTokenizer((text_bundle / TOKENIZER).read_bytes(), 32)


def _tokenize(
    tokenizer: BundleTokenizer, texts: list[str], *, max_total_tokens: int = 9999, prompt: str = "", **options: Any
) -> list[TokenizedText]:
    options["prompt"] = pb.Prompt(text=prompt)
    return finish(tokenizer.tokenize(texts, TokenizeOptions(**options), Failures(), max_total_tokens))


def _ids(tokenizer: BundleTokenizer, texts: list[str], **options: Any) -> list[list[int]]:
    return [tokens.ids.tolist() for tokens in _tokenize(tokenizer, texts, **options)]


def _reference(folder: Path, **settings: Any) -> Any:
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **settings)


@pytest.mark.parametrize("truncation", SIDES)
@pytest.mark.parametrize("prompt", ["", "the table: "])
def test_a_text_that_is_too_long_is_truncated_as_by_transformers(
    truncation: Truncation, prompt: str, tokenizer: BundleTokenizer, text_checkpoint: Path
) -> None:
    reference = _reference(text_checkpoint, truncation_side=SIDES[truncation])
    texts = [*TEXTS, LONG]
    prompted = [prompt + text for text in texts]
    expected = reference(prompted, truncation=True, max_length=32, padding=False)["input_ids"]
    found = _tokenize(tokenizer, texts, truncation=truncation, prompt=prompt)
    assert [tokens.ids.tolist() for tokens in found] == expected
    whole = reference(prompted, truncation=False, padding=False)["input_ids"]
    assert [tokens.original_tokens for tokens in found] == [*map(len, whole)]


@pytest.mark.parametrize("truncation", SIDES)
@pytest.mark.parametrize(
    "processor",
    [
        processors.TemplateProcessing("[CLS] [MASK] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3), ("[MASK]", 4)]),
        processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)),
        processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)),
        processors.TemplateProcessing("$A", None, []),
    ],
    ids=["two before", "RoBERTa", "BERT", "none"],
)
def test_truncation_keeps_special_tokens_except_those_in_the_text(
    truncation: Truncation, processor: Any, text_checkpoint: Path, tmp_path: Path
) -> None:
    reference = tokenizers.Tokenizer.from_file(str(text_checkpoint / "tokenizer.json"))
    reference.add_special_tokens(["[CLS]", "[SEP]"])
    reference.post_processor = processor
    reference.no_padding()
    reference.enable_truncation(7, direction=SIDES[truncation])
    expected = reference.encode("[SEP] a b c d e f [CLS]")
    reference.no_truncation()
    reference.save(str(tmp_path / TOKENIZER))
    tokenizer = BundleTokenizer((tmp_path / TOKENIZER).read_bytes(), 7)
    (found,) = _tokenize(tokenizer, ["[SEP] a b c d e f [CLS]"], truncation=truncation, offsets=True)
    assert found.offsets is not None
    assert (found.ids.tolist(), [*map(tuple, found.offsets.tolist())]) == (expected.ids, expected.offsets)


@pytest.mark.parametrize("truncation", SIDES)
def test_offsets_equal_those_of_transformers(
    truncation: Truncation, tokenizer: BundleTokenizer, text_checkpoint: Path
) -> None:
    reference = _reference(text_checkpoint, truncation_side=SIDES[truncation])
    texts = [*TEXTS, LONG, "é a👩‍👧 雨e\u0301"]
    expected = reference(texts, truncation=True, max_length=32, return_offsets_mapping=True)["offset_mapping"]
    for tokens, pairs in zip(_tokenize(tokenizer, texts, truncation=truncation, offsets=True), expected, strict=True):
        assert tokens.offsets is not None
        assert tokens.offsets.tolist() == [[*pair] for pair in pairs]


@pytest.mark.parametrize("truncation", [*Truncation])
def test_a_prompt_fills_up_short_texts_and_limits_long_ones(truncation: Truncation, tokenizer: BundleTokenizer) -> None:
    prompt = pb.Prompt(text="the ", max_tokens=7, expanded_tokens=6, expansion_id=4)
    options, failures = TokenizeOptions(prompt, truncation, offsets=True), Failures(keep=True)
    whole = _ids(tokenizer, ["the bread", "the bread is fresh", "the bread is fresh please table"])
    short, fitting, long = finish(
        tokenizer.tokenize(["bread", "bread is fresh", "bread is fresh please table"], options, failures, 9999)
    )
    assert short.ids.tolist() == [*whole[0], 4, 4]
    assert short.offsets is not None
    assert short.offsets.tolist() == [[0, 0], [0, 0], [0, 5], [0, 0], [0, 0], [0, 0]]
    assert fitting.ids.tolist() == whole[1]
    if truncation is Truncation.ERROR:
        error = failures.by_sequence[2]
        assert isinstance(error, SequenceTooLong)
        assert (error.limit, error.actual) == (7, 8)
    elif truncation is Truncation.NONE:
        assert long.ids.tolist() == whole[2]
    else:
        dropped = 1 if truncation is Truncation.LEFT else 6
        assert long.ids.tolist() == whole[2][:dropped] + whole[2][dropped + 1 :]


@pytest.mark.parametrize(("text", "tokens"), [("bread " * 31, 33), ("." * 2049, 2051)], ids=["short", "long"])
def test_a_text_over_the_maximum_is_refused_with_its_length_and_the_limit(
    text: str, tokens: int, tokenizer: BundleTokenizer
) -> None:
    with pytest.raises(SequenceTooLong, match=rf"sequence 2.* {tokens} .* 32 ") as refusal:
        _tokenize(tokenizer, ["bread", "bread " * 30, text])
    found = refusal.value
    assert (found.sequence, found.field, found.limit, found.actual) == (2, "texts", 32, tokens)


@pytest.mark.parametrize("truncation", Truncation)
@pytest.mark.parametrize("filler", [" ", "\n", "\u3000", "\u200b"])
def test_a_text_of_many_characters_and_few_tokens_is_tokenised(
    filler: str, truncation: Truncation, tokenizer: BundleTokenizer
) -> None:
    failures = Failures(keep=True)
    options = TokenizeOptions(truncation=truncation)
    (found,) = finish(tokenizer.tokenize([f"bread{filler * 40_000} rain"], options, failures, 9999))
    assert failures.by_sequence == {}
    assert [found.ids.tolist()] == _ids(tokenizer, ["bread rain"])


@pytest.mark.parametrize("truncation", SIDES)
def test_a_text_of_100000_characters_is_truncated_as_by_transformers(
    truncation: Truncation, tokenizer: BundleTokenizer, text_checkpoint: Path
) -> None:
    text = "bread" + " " * 50_000 + "rain falls on stone, " * 2_500
    reference = _reference(text_checkpoint, truncation_side=SIDES[truncation])
    (found,) = _tokenize(tokenizer, [text], truncation=truncation)
    assert found.ids.tolist() == reference(text, truncation=True, max_length=32)["input_ids"]
    assert found.original_tokens == len(reference(text)["input_ids"])


def test_texts_are_tokenised_in_slices_until_the_maximum_of_all_tokens_is_reached(
    tokenizer: BundleTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwaiter_server.inputs.tokenizer._SLICE_CHARACTERS", 10)
    texts = [text for text in TEXTS for _ in range(3)]
    whole = _ids(tokenizer, texts)
    assert whole == [_ids(tokenizer, [text])[0] for text in texts]
    with pytest.raises(InvalidInput) as refused:
        _ids(tokenizer, texts, max_total_tokens=12)
    # How many tokens there are in all is not known.
    assert (refused.value.limit, refused.value.actual) == (12, None)


def test_if_failures_are_kept_the_other_texts_are_tokenised(tokenizer: BundleTokenizer) -> None:
    failures = Failures(keep=True)
    texts = ["a" * (MAX_BYTES_OF_ONE_TEXT + 1), "bread", "bread " * 31, "." * 2049, "a"]
    found = finish(tokenizer.tokenize(texts, TokenizeOptions(offsets=True), failures, 999))
    assert [tokens.ids.tolist() for tokens in found] == [
        [],
        *_ids(tokenizer, ["bread"]),
        [],
        [],
        *_ids(tokenizer, ["a"]),
    ]
    kinds = {0: InvalidInput, 2: SequenceTooLong, 3: SequenceTooLong}
    assert {index: type(error) for index, error in failures.by_sequence.items()} == kinds
    assert all(error.sequence == index for index, error in failures.by_sequence.items())


def _changed(bundle: Path, folder: Path, **parts: Any) -> Bundle:
    """Return a copy of a bundle whose tokenizer.json has other parts and a new checksum."""
    copied = copy(bundle, folder)
    settings = json.loads((copied / TOKENIZER).read_text())
    (copied / TOKENIZER).write_text(json.dumps({**settings, **parts}))
    sign(copied, [TOKENIZER])
    return Bundle.open(copied)


def _refusal(bundle: Bundle) -> str:
    with pytest.raises(BundleRefused) as refused:
        BundleTokenizer.open_in(bundle)
    message = str(refused.value)
    assert "\n" not in message
    assert str(bundle.folder / TOKENIZER) in message
    return message


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 10_000, b"\xff", b'{"version": "9"}'])
def test_a_file_that_is_no_tokenizer_is_refused(content: bytes, text_bundle: Path, tmp_path: Path) -> None:
    folder = copy(text_bundle, tmp_path)
    (folder / TOKENIZER).write_bytes(content)
    sign(folder, [TOKENIZER])
    assert "cannot be read" in _refusal(Bundle.open(folder))


_TEMPLATE = {"type": "TemplateProcessing", "pair": [], "special_tokens": {}}
_UNKNOWN = [{"SpecialToken": {"id": "[X]", "type_id": 0}}]


@pytest.mark.parametrize(
    ("parts", "fact"),
    [
        # These three make the library panic.
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "precompiled_charsmap"),
        ({"post_processor": {**_TEMPLATE, "single": _UNKNOWN}}, "no entry found"),
        ({"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]], "byte_fallback": False}}, "unk_id"),
        ({"added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 71}, "unk_token": "a"}}, "token id 71"),
    ],
)
def test_a_tokenizer_that_fails_or_has_too_large_ids_is_refused(
    parts: dict[str, Any], fact: str, text_bundle: Path, tmp_path: Path
) -> None:
    assert fact in _refusal(_changed(text_bundle, tmp_path, **parts))


def test_a_prompt_with_another_number_of_tokens_is_refused(text_bundle: Path, tmp_path: Path) -> None:
    folder = copy(text_bundle, tmp_path)
    manifest = read_manifest(folder)
    manifest.prompts[0].tokens = 2
    write_manifest(folder, manifest)
    assert "'query' has 4 tokens, and 2" in _refusal(Bundle.open(folder))


@pytest.mark.parametrize(("skips_prompt", "tokens"), [(True, 5), (True, 4), (False, 4)])
def test_pooling_may_skip_the_last_token_of_a_prompt(
    skips_prompt: bool, tokens: int, text_bundle: Path, tmp_path: Path
) -> None:
    folder = copy(text_bundle, tmp_path)
    manifest = read_manifest(folder)
    manifest.pooling_skips_prompt, manifest.prompts[0].tokens = skips_prompt, tokens
    write_manifest(folder, manifest)
    BundleTokenizer.open_in(Bundle.open(folder))


def test_padding_and_truncation_of_the_file_have_no_effect(text_bundle: Path, tmp_path: Path) -> None:
    padding = {
        "strategy": {"Fixed": 100},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    changed = BundleTokenizer.open_in(_changed(text_bundle, tmp_path, padding=padding, truncation=truncation))
    assert _ids(changed, TEXTS) == _ids(BundleTokenizer((text_bundle / TOKENIZER).read_bytes(), 32), TEXTS)


def test_a_panic_of_the_tokenizer_is_a_typed_error(text_bundle: Path, tmp_path: Path) -> None:
    folder = copy(text_bundle, tmp_path)
    settings = json.loads((folder / TOKENIZER).read_text())
    settings["post_processor"]["special_tokens"] = {}
    (folder / TOKENIZER).write_text(json.dumps(settings))
    with pytest.raises(InferenceFailed, match="tokenizer failed") as failed:
        _ids(BundleTokenizer((folder / TOKENIZER).read_bytes(), 32), ["bread"])
    assert "no entry found" in str(failed.value.__cause__)


_QUERY, _DOCUMENT = "is the bread fresh?", "Fresh bread falls on the table, and rain on stones. " * 3


def _templated(tokenizer: BundleTokenizer, max_tokens: int) -> BundleTokenizer:
    return BundleTokenizer(
        tokenizer.file, max_tokens, PairTemplate(before="rain: ", between="\ntable: ", after="\nplease?")
    )


def _pair_tokens(tokenizer: BundleTokenizer, pair: tuple[str, str], **options: Any) -> list[int]:
    (tokens,) = finish(tokenizer.tokenize([pair], TokenizeOptions(**options), Failures(), 9999))
    ids: list[int] = tokens.ids.tolist()
    return ids


@pytest.mark.parametrize("pair_truncation", [pb.PAIR_TRUNCATION_LONGEST_FIRST, pb.PAIR_TRUNCATION_ONLY_SECOND])
@pytest.mark.parametrize("truncation", [Truncation.LEFT, Truncation.RIGHT])
def test_offsets_of_a_pair_are_positions_in_its_second_text(
    truncation: Truncation, pair_truncation: pb.PairTruncation
) -> None:
    reference = word_piece()
    tokenizer = BundleTokenizer(reference.to_str().encode(), 32)
    how = "only_second" if pair_truncation == pb.PAIR_TRUNCATION_ONLY_SECOND else "longest_first"
    reference.enable_truncation(32, strategy=how, direction=SIDES[truncation])
    options = TokenizeOptions(truncation=truncation, offsets=True, pair_truncation=pair_truncation)
    pairs = [(_QUERY, _DOCUMENT), (_QUERY, "rain"), ("", "")]
    for pair, found in zip(pairs, finish(tokenizer.tokenize(pairs, options, Failures(), 9999)), strict=True):
        expected = reference.encode(*pair)
        assert found.ids.tolist() == expected.ids
        assert found.types is not None
        assert found.types.tolist() == expected.type_ids
        places = zip(expected.offsets, expected.sequence_ids, strict=True)
        assert found.offsets is not None
        assert found.offsets.tolist() == [[*place] if text == 1 else [0, 0] for place, text in places]


def test_a_pair_without_tokens_has_no_offsets(tokenizer: BundleTokenizer) -> None:
    settings = json.loads(tokenizer.file)
    bare = BundleTokenizer(json.dumps({**settings, "post_processor": None}).encode(), 32)
    (found,) = finish(bare.tokenize([("", "")], TokenizeOptions(offsets=True), Failures(), 9999))
    assert found.offsets is not None
    assert found.offsets.shape == (0, 2)


def test_a_template_makes_one_text_of_a_pair_without_further_tokens(tokenizer: BundleTokenizer) -> None:
    raw = tokenizers.Tokenizer.from_buffer(tokenizer.file)
    for pair in [(_QUERY, "bread"), ("", ""), (" two\n", "\ttables ")]:
        text = f"rain: {pair[0]}\ntable: {pair[1]}\nplease?"
        expected = raw.encode(text, add_special_tokens=False).ids
        assert _pair_tokens(_templated(tokenizer, 64), pair) == expected
    # The template is for pairs only.
    assert _ids(_templated(tokenizer, 64), TEXTS) == _ids(tokenizer, TEXTS)


@pytest.mark.parametrize("truncation", SIDES)
@pytest.mark.parametrize("pair_truncation", [pb.PAIR_TRUNCATION_LONGEST_FIRST, pb.PAIR_TRUNCATION_ONLY_SECOND])
def test_truncation_keeps_the_template(
    truncation: Truncation, pair_truncation: pb.PairTruncation, tokenizer: BundleTokenizer
) -> None:
    raw = tokenizers.Tokenizer.from_buffer(tokenizer.file)
    before, query, between, document, after = (
        raw.encode(text, add_special_tokens=False).ids
        for text in ("rain: ", _QUERY, "\ntable: ", _DOCUMENT, "\nplease?")
    )
    room = 20 - len(before + between + after)
    options = {"truncation": truncation, "pair_truncation": pair_truncation}
    found = _pair_tokens(_templated(tokenizer, 20), (_QUERY, _DOCUMENT), **options)
    # The document is longer than the query, so with both rules only the document loses tokens.
    kept = room - len(query)
    assert 0 < kept < len(document)
    part = document[:kept] if truncation is Truncation.RIGHT else document[-kept:]
    assert found == [*before, *query, *between, *part, *after]


def test_a_pair_that_is_too_long_in_its_template_is_refused(tokenizer: BundleTokenizer) -> None:
    failures = Failures(keep=True)
    finish(_templated(tokenizer, 20).tokenize([(_QUERY, _DOCUMENT), ("a", "b")], TokenizeOptions(), failures, 9999))
    assert [*failures.by_sequence] == [0]
    assert isinstance(failures.by_sequence[0], SequenceTooLong)
    assert failures.by_sequence[0].field == "pairs"


def test_a_bundle_whose_template_cannot_be_used_is_refused(text_bundle: Path, tmp_path: Path) -> None:
    folder = copy(text_bundle, tmp_path)
    manifest = read_manifest(folder)
    manifest.takes_pairs = True
    manifest.head.labels[:] = ["one"]
    manifest.head.function = pb.SCORE_FUNCTION_SIGMOID
    manifest.pair_template.before = "bread " * 32
    write_manifest(folder, manifest)
    assert "pair_template has 32 tokens" in _refusal(Bundle.open(folder))


def _with_line_breaks() -> tokenizers.Tokenizer:
    """Return a tokenizer that, as that of Qwen, joins a full stop with the line breaks after it."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(r" ?\p{L}+| ?[^\s\p{L}]+[\r\n]*|\s+"), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<end>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["Fresh bread.\nRain?\nDocument: the table.\n"] * 20, trainer)
    return tokenizer


@pytest.mark.parametrize("after", ["<end>\nanswer", "\n<end>answer", '"', " answer"])
def test_a_document_that_is_cut_gets_the_end_of_the_template(after: str) -> None:
    raw = _with_line_breaks()
    template = PairTemplate(before="Query: ", between="\nDocument: ", after=after)
    one, other = (raw.encode(f"{text}{after}").ids for text in ("0", "1 2 3 4"))
    end = one[-next(count for count in range(len(one)) if one[-count - 1] != other[-count - 1]) :]
    for document in ("Fresh bread. " * 9 + "Rain.", "Fresh bread  " * 9 + " ", "bread.\n" * 30):
        ids = raw.encode(f"Query: Rain?\nDocument: {document}{after}").ids
        for limit in (len(ids) - 1, len(ids) - 7):
            tokenizer = BundleTokenizer(raw.to_str().encode(), limit, template)
            options = {"truncation": Truncation.RIGHT, "pair_truncation": pb.PAIR_TRUNCATION_ONLY_SECOND}
            found = _pair_tokens(tokenizer, ("Rain?", document), **options)
            # The rule of sentence-transformers: cut the whole text, and put the end of the template back.
            assert found == [*ids[: limit - len(end)], *end]
            assert raw.decode(found, skip_special_tokens=False).endswith(after)
