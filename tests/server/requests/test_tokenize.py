"""Tokenize returns the ids of the model's tokenizer, whatever number of tokens the model takes."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from tokenizers import Tokenizer

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import PairTemplate
from headwaiter_proto.rules.errors import InferenceFailed, InvalidInput, Overloaded
from headwaiter_proto.rules.limits import RequestLimits
from headwaiter_server.inputs.tokenizer import BundleTokenizer
from headwaiter_server.requests.shares import ReplyLimit
from tests.support.export.tokenizer_folders import word_piece
from tests.support.server.service_under_test import Service, WordLengths, endless_call

TEXTS = ["The bread is fresh, please.", "", "rain ☔ 雨", "[CLS] a"]
PROMPTS = [
    pb.Prompt(name="query", text="rain on ", tokens=3, max_tokens=12, expanded_tokens=12, expansion_id=4),
    pb.Prompt(name="other", text="a "),
]


@pytest.fixture(scope="module")
def oracle() -> Tokenizer:
    return word_piece()


@pytest.fixture
def serve_texts(serve: Callable[..., Service], oracle: Tokenizer) -> Callable[..., Service]:
    """Make services of a model that takes texts of at most 4 tokens; a request may have 500 tokens."""

    def make(template: PairTemplate | None = None, **manifest: Any) -> Service:
        tokenizer = cast(Any, BundleTokenizer(oracle.to_str().encode(), 4, template))
        service = serve(tokenizer, vocabulary_size=400, pair_template=template, **manifest)
        service.path.limits = RequestLimits(20, 500, 1 << 20, 1)
        return service

    return make


async def tokenize(service: Service, **fields: Any) -> pb.TokenizeResponse:
    request = pb.TokenizeRequest(**fields)
    raw = await service.rpc.answer("Tokenize", request.SerializeToString(), endless_call())
    return pb.TokenizeResponse.FromString(raw)


def ids_of(reply: pb.TokenizeResponse) -> list[list[int]]:
    flat = np.frombuffer(reply.tokens.data, "<i4")
    return [each.tolist() for each in np.split(flat, np.cumsum(reply.tokens.lengths)[:-1])]


async def test_a_prompt_comes_before_the_text(serve_texts: Callable[..., Service], oracle: Tokenizer) -> None:
    service = serve_texts(prompts=PROMPTS, default_prompt="other")
    reply = await tokenize(service, texts=pb.Texts(values=["stone", TEXTS[0]], prompt="query"), offsets=True)
    short, long = (oracle.encode("rain on " + text) for text in ("stone", TEXTS[0]))
    assert len(short.ids) < 12
    assert ids_of(reply) == [short.ids + [4] * (12 - len(short.ids)), long.ids]
    assert reply.max_tokens == 12
    offsets = [(max(0, begin - 8), max(0, end - 8)) for begin, end in long.offsets]
    assert [*zip(reply.offsets[1].begin, reply.offsets[1].end, strict=True)] == offsets
    assert list(reply.special)[:12] == [1, *[0] * (len(short.ids) - 2), 1, *[1] * (12 - len(short.ids))]
    by_default = await tokenize(service, texts=pb.Texts(values=["stone"]))
    assert (ids_of(by_default), by_default.max_tokens) == ([oracle.encode("a stone").ids], 4)


async def test_pairs_have_types(serve_texts: Callable[..., Service], oracle: Tokenizer) -> None:
    service = serve_texts(takes_pairs=True, token_types=2)
    pairs = pb.Pairs(first=["[SEP] rain"], second=[TEXTS[0], "a"])
    reply = await tokenize(service, pairs=pairs, offsets=True)
    expected = [oracle.encode("[SEP] rain", second) for second in pairs.second]
    assert ids_of(reply) == [each.ids for each in expected]
    assert list(reply.tokens.types) == [kind for each in expected for kind in each.type_ids]
    assert list(reply.special) == [special for each in expected for special in each.special_tokens_mask]
    places = zip(expected[1].offsets, expected[1].sequence_ids, strict=True)
    assert list(reply.offsets[1].end) == [end if text == 1 else 0 for (_, end), text in places]


async def test_pairs_in_a_template_have_no_offsets(serve_texts: Callable[..., Service], oracle: Tokenizer) -> None:
    service = serve_texts(PairTemplate(before="a: ", between=" b: ", after=" ?"), takes_pairs=True)
    pairs = pb.Pairs(first=["rain"], second=["the bread"])
    reply = await tokenize(service, pairs=pairs)
    assert ids_of(reply) == [oracle.encode("a: rain b: the bread ?", add_special_tokens=False).ids]
    with pytest.raises(InvalidInput, match=r"offsets is set.*: leave offsets out") as refused:
        await tokenize(service, pairs=pairs, offsets=True)
    assert refused.value.field == "offsets"


async def test_a_text_of_a_tokenizer_without_special_tokens_may_have_no_tokens(serve: Callable[..., Service]) -> None:
    reply = await tokenize(serve(WordLengths()), texts=pb.Texts(values=["", "a bb"]), offsets=True)
    assert ids_of(reply) == [[], [1, 2]]
    assert list(reply.tokens.lengths) == [0, 2]


async def test_the_tokens_of_a_request_are_limited(serve_texts: Callable[..., Service]) -> None:
    with pytest.raises(InvalidInput) as refused:
        await tokenize(serve_texts(), texts=pb.Texts(values=["a " * 499]))
    assert (refused.value.limit, refused.value.actual) == (500, 501)


async def test_the_bytes_of_replies_are_limited(serve_texts: Callable[..., Service]) -> None:
    service = serve_texts()
    request = pb.TokenizeRequest(texts=pb.Texts(values=["a"])).SerializeToString()
    call = endless_call()
    assert call.reply_bytes == 0 < len(await service.rpc.answer("Tokenize", request, call)) == call.reply_bytes
    service.path.reply_limit = ReplyLimit(1)
    held = endless_call()
    service.path.hold_reply(held, 1)
    with pytest.raises(Overloaded):
        await service.rpc.answer("Tokenize", request, endless_call())


def test_a_failure_of_the_tokenizer_is_an_error_of_the_request() -> None:
    tokenizer = BundleTokenizer(word_piece().to_str().encode(), 4)

    class Broken:
        def decode_batch(self, *_: Any, **__: Any) -> None:
            raise RuntimeError

    tokenizer._tokenizer = cast(Any, Broken())
    with pytest.raises(InferenceFailed, match="tokenizer failed"):
        tokenizer.decode([np.array([1])], skip_special_tokens=True)
