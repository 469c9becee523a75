"""Texts are tokenised in a thread, with their prompts, or refused."""

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_server.inputs.tokenizer import TokenizedText
from tests.support.server.service_under_test import Service, WordLengths, endless_call, pooled_rows, token_request


async def test_other_requests_are_answered_while_texts_are_tokenised(serve: Callable[..., Service]) -> None:
    answered = threading.Event()

    class Slow(WordLengths):
        def tokenize(self, *arguments: Any) -> Generator[None, None, list[TokenizedText]]:
            assert answered.wait(30.0)
            return (yield from super().tokenize(*arguments))

    service = serve(Slow())
    slow = asyncio.create_task(service.encode(pb.EncodeRequest(texts=pb.Texts(values=["a bcd", "ef"]))))
    await asyncio.sleep(0)
    assert pooled_rows(await service.encode(token_request([3]))) == [[3, 1]]
    answered.set()
    assert pooled_rows(await slow) == [[4, 2], [2, 1]]


async def test_a_model_that_needs_two_tokens_refuses_a_text_of_one(serve: Callable[..., Service]) -> None:
    service = serve(WordLengths(), min_tokens=2)
    for request in (pb.EncodeRequest(texts=pb.Texts(values=["a bcd", "ef"])), token_request([1, 3], [2])):
        with pytest.raises(InvalidInput, match="sequence 1") as refused:
            await service.encode(request)
        assert (refused.value.sequence, refused.value.limit, refused.value.actual) == (1, 2, 1)


async def test_texts_with_too_many_bytes_are_refused_before_they_are_tokenised(service: Service) -> None:
    texts = pb.Texts(values=["a" * 200])
    with pytest.raises(InvalidInput) as refusal:
        await service.encode(pb.EncodeRequest(texts=texts))
    error = refusal.value
    assert (error.field, error.limit, error.actual) == ("texts", 128, texts.ByteSize())
    assert "128" in str(error)
    assert str(texts.ByteSize()) in str(error)


async def test_a_text_without_tokens_is_refused_with_the_reason(service: Service) -> None:
    with pytest.raises(InvalidInput, match="sequence 1 has no tokens: send a text of at least one word") as refusal:
        await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["a", ""])))
    assert (refusal.value.sequence, refusal.value.field) == (1, "texts")


async def test_half_an_emoji_fails_alone_in_a_partial_request_and_is_otherwise_named(service: Service) -> None:
    texts = pb.Texts(values=["a bcd", "ef xxx", "ef"])
    whole, partial = (
        pb.EncodeRequest(texts=texts, partial=partial).SerializeToString().replace(b"xxx", b"\xed\xa0\xbc")
        for partial in (False, True)
    )
    reply = pb.EncodeResponse.FromString(await service.rpc.answer("Encode", partial, endless_call()))
    assert pooled_rows(reply) == [[4, 2], [0, 0], [2, 1]]
    (failure,) = reply.failures
    assert (failure.sequence, failure.reason) == (1, pb.INVALID_INPUT)
    assert failure.metadata == {"sequence": "1", "field": "texts.values"}
    with pytest.raises(InvalidInput, match=r"sequence 1 .*D83C") as refusal:
        await service.rpc.answer("Encode", whole, endless_call())
    assert (refusal.value.sequence, refusal.value.field) == (1, "texts.values")


PROMPTS = [pb.Prompt(name="query", text="ab ", tokens=1), pb.Prompt(name="none")]


@pytest.mark.parametrize(
    ("manifest", "by_default", "with_prompt"),
    [
        ({"default_prompt": "query", "pooling_skips_prompt": False}, [10, 4], [10, 4]),
        # The graph returns sums. The host pools to the mean of the rows after the prompt.
        ({"pooling_skips_prompt": True}, [8, 3], [pytest.approx(8 / 3), 1]),
    ],
    ids=["default prompt", "pooling without the prompt"],
)
async def test_texts_get_the_requested_prompt_or_else_the_default_one(
    manifest: dict[str, Any], by_default: list[float], with_prompt: list[float], serve: Callable[..., Service]
) -> None:
    service = serve(WordLengths(), prompts=PROMPTS, **manifest)
    for name, pooled in (("", by_default), ("query", with_prompt), ("none", [8, 3])):
        reply = await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["cd ef ghij"], prompt=name)))
        assert pooled_rows(reply) == [pooled]
    tokens = (await service.attend(pb.AttendRequest(texts=pb.Texts(values=["cde"])))).tokens
    assert list(tokens) == (["<2>", "<3>"] if "default_prompt" in manifest else ["<3>"])
    with pytest.raises(InvalidInput, match=r"'passage'.*'query', 'none'") as refusal:
        await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["a"], prompt="passage")))
    assert refusal.value.field == "texts.prompt"
