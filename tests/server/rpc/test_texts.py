"""Texts are tokenised in a thread, with their prompts, or refused."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_server.models.tokenizer import TokenizedText
from tests.server.rpc.service_under_test import Service, WordLengths, pooled_rows, token_request


async def test_texts_are_tokenised_by_the_server(service: Service) -> None:
    reply = await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["a bcd", "ef"])))
    assert pooled_rows(reply) == [[4, 2], [2, 1]]
    assert list(reply.lengths) == [2, 1]


async def test_other_requests_are_answered_while_texts_are_tokenised(tmp_path: Path) -> None:
    answered = threading.Event()

    class Slow(WordLengths):
        def tokenize(self, *arguments: Any) -> list[TokenizedText]:
            assert answered.wait(30.0)
            return super().tokenize(*arguments)

    service = Service(tmp_path, Slow())
    slow = asyncio.create_task(service.encode(pb.EncodeRequest(texts=pb.Texts(values=["a bcd", "ef"]))))
    await asyncio.sleep(0)
    assert pooled_rows(await service.encode(token_request([3]))) == [[3, 1]]
    answered.set()
    assert pooled_rows(await slow) == [[4, 2], [2, 1]]
    await service.scheduler.drain(30.0)


async def test_a_model_without_a_tokenizer_refuses_texts(tmp_path: Path) -> None:
    service = Service(tmp_path, None)
    with pytest.raises(InvalidInput, match="tokenizer") as refusal:
        await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["a"])))
    assert refusal.value.field == "texts"
    await service.scheduler.drain(30.0)


async def test_a_model_that_needs_two_tokens_refuses_a_text_of_one(tmp_path: Path) -> None:
    service = Service(tmp_path, WordLengths(), min_tokens=2)
    for request in (pb.EncodeRequest(texts=pb.Texts(values=["a bcd", "ef"])), token_request([1, 3], [2])):
        with pytest.raises(InvalidInput, match="sequence 1") as refused:
            await service.encode(request)
        assert (refused.value.sequence, refused.value.limit, refused.value.actual) == (1, 2, 1)
    await service.scheduler.drain(30.0)


async def test_texts_with_too_many_bytes_are_refused_before_they_are_tokenised(service: Service) -> None:
    texts = pb.Texts(values=["a" * 200])
    with pytest.raises(InvalidInput) as refusal:
        await service.encode(pb.EncodeRequest(texts=texts))
    error = refusal.value
    assert (error.field, error.limit, error.actual) == ("texts", 128, texts.ByteSize())
    assert "128" in str(error)
    assert str(texts.ByteSize()) in str(error)


async def test_texts_get_the_requested_prompt_or_else_the_default_one(tmp_path: Path) -> None:
    prompts = [pb.Prompt(name="query", text="ab ", tokens=1), pb.Prompt(name="none")]
    service = Service(tmp_path, WordLengths(), prompts=prompts, default_prompt="query", pooling_skips_prompt=False)
    for name, pooled in (("", [5, 2]), ("query", [5, 2]), ("none", [3, 1])):
        reply = await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["cde"], prompt=name)))
        assert pooled_rows(reply) == [pooled]
    with pytest.raises(InvalidInput, match=r"'passage'.*'query', 'none'") as refusal:
        await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["a"], prompt="passage")))
    assert refusal.value.field == "texts.prompt"
    assert list((await service.attend(pb.AttendRequest(texts=pb.Texts(values=["cde"])))).tokens) == ["<2>", "<3>"]
    await service.scheduler.drain(30.0)


async def test_pooling_leaves_out_the_prompt_if_the_model_does(tmp_path: Path) -> None:
    prompts = [pb.Prompt(name="query", text="ab ", tokens=1), pb.Prompt(name="none")]
    service = Service(tmp_path, WordLengths(), prompts=prompts, pooling_skips_prompt=True)
    for name, pooled in (("", [4, 3]), ("none", [4, 3]), ("query", [2, 1])):
        reply = await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["c d ef"], prompt=name)))
        # The graph returns sums. With the prompt "query", the host pools to the mean of the rows after the prompt.
        assert pooled_rows(reply) == [pooled if name != "query" else [pytest.approx(4 / 3), 1]]
    await service.scheduler.drain(30.0)


async def test_a_text_without_tokens_is_refused_with_the_reason(service: Service) -> None:
    with pytest.raises(InvalidInput, match="sequence 1 has no tokens: send a text of at least one word") as refusal:
        await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["a", ""])))
    assert (refusal.value.sequence, refusal.value.field) == (1, "texts")
