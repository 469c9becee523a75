"""Token ids equal those of transformers' tokenizer, for real sentences and for thousands of adversarial strings."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import transformers

from bench.loads.traces import sentences
from headwaiter_proto.rules.errors import Failures
from headwaiter_server.inputs.tokenizer import BundleTokenizer, TokenizeOptions, Truncation
from headwaiter_server.requests.threads import finish
from headwaiter_server.runtime.bundle import TOKENIZER, Bundle

# The first run downloads and exports the model.
pytestmark = pytest.mark.timeout(600)

STRINGS = 5000
REAL_SENTENCES = 2000
LONG_BYTES = 100_000
SIDES = {Truncation.LEFT: "left", Truncation.RIGHT: "right"}
# The adversarial strings combine these pieces.
PIECES = {
    "latin": ["The", "quick", "naïve", "Straße", "œuvre", "don't", "e\u0301", "I\u0307", "ﬁ", "x" * 150, "3.14", "—"],
    "emoji": ["😀", "👩‍👩‍👧‍👦", "👍🏽", "🇺🇳", "🏳️‍🌈", "❤️", "1️⃣", "🫠", "\ufe0f", "\u200d"],
    "right to left": ["שלום", "עולם", "مرحبا", "بِسْمِ", "\u202eabc\u202c", "\u200f", "\u2067", "فارسی\u200cها", "٣٤"],
    "control": [
        "\x00",
        "\x07",
        "\x1b[2J",
        "\x7f",
        "\x85",
        "\r\n",
        "\t",
        "\u200b",
        "\ufeff",
        "\u2028",
        "\ufffd",
        "\xad",
    ],
    "wide": ["雨", "日本語", "한국어", "カタカナ", "ｆｕｌｌ", "\u3000", "𠀀", "龘", "ไทย", "हिन्दी", "க்ஷ"],
    "marks": ["a" + "\u0301" * 40, "Z͑ͫ̓ͪ̂ͫ̽a̴̢l͢g̷o̢", "ǆ", "\U000e0041", "\U0010ffff", "\ue000", "\u0378", "𝕏", "℻", "½"],
    "code": ["[CLS]", "[SEP]", "[MASK]", "[UNK]", "##ing", "<s>", "</s>", "{}", "0x1F", "a_b.c", "https://x.y/?z=1"],
}


def adversarial(count: int, random: Random) -> list[str]:
    """Return random strings of one kind of pieces or of all kinds, with and without spaces."""
    kinds = [*PIECES.values(), [piece for pieces in PIECES.values() for piece in pieces]]
    return [
        random.choice(["", " ", "  "]).join(random.choices(kinds[index % len(kinds)], k=random.randint(1, 40)))
        for index in range(count)
    ]


def long_strings(random: Random) -> list[str]:
    """Return one string of 100 kB for each kind of pieces, and one without spaces."""
    found = []
    for pieces in PIECES.values():
        text = " ".join(random.choices(pieces, k=LONG_BYTES))
        found.append(text.encode()[:LONG_BYTES].decode(errors="ignore"))
    return [*found, "a" * LONG_BYTES]


@pytest.fixture(scope="module")
def strings() -> list[str]:
    random = Random(0)
    drawn = [*sentences()[:REAL_SENTENCES], *long_strings(random)]
    drawn += adversarial(2 * STRINGS, random)
    found = [text for text in drawn if text.strip()][:STRINGS]
    assert len(found) == STRINGS
    return found


@pytest.fixture(scope="module")
def encoder(real_bundle: Path) -> BundleTokenizer:
    return BundleTokenizer((real_bundle / TOKENIZER).read_bytes(), Bundle.open(real_bundle).manifest.max_text_tokens)


@pytest.fixture(scope="module")
def reference(real_checkpoint: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(real_checkpoint)


@pytest.mark.parametrize("truncation", SIDES)
def test_token_ids_equal_those_of_transformers(
    truncation: Truncation, strings: list[str], encoder: BundleTokenizer, reference: Any, real_bundle: Path
) -> None:
    longest = Bundle.open(real_bundle).manifest.max_text_tokens
    reference.truncation_side = SIDES[truncation]
    expected = reference(strings, truncation=True, max_length=longest)["input_ids"]
    found = finish(encoder.tokenize(strings, TokenizeOptions(truncation=truncation), Failures(), 1 << 40))
    wrong = [text for text, tokens, ids in zip(strings, found, expected, strict=True) if tokens.ids.tolist() != ids]
    assert not wrong
    # Each long string is truncated, except the one without spaces, which is one token.
    assert sum(tokens.original_tokens > longest for tokens in found) >= len(PIECES)
