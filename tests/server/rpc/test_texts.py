"""Texts that a request holds: tokenised aside, with their prompts, or refused."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.errors import InvalidInput
from headwaiter_server.models.tokenizer import TokenizedText
from tests.server.rpc.opened import Service, WordLengths, pooled_rows, token_request


async def test_texts_are_tokenised_by_the_server(service: Service) -> None:
    reply = await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["a bcd", "ef"])))
    assert pooled_rows(reply) == [[4, 2], [2, 1]]
    assert list(reply.lengths) == [2, 1]


async def test_while_texts_are_tokenised_others_are_answered(tmp_path: Path) -> None:
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


async def test_a_model_without_a_tokenizer_takes_no_texts(tmp_path: Path) -> None:
    service = Service(tmp_path, None)
    with pytest.raises(InvalidInput, match="the model has no tokenizer; send token ids or features"):
        await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["a"])))
    await service.scheduler.drain(30.0)


async def test_where_no_token_attends_to_itself_a_text_of_one_token_is_refused_too(tmp_path: Path) -> None:
    service = Service(tmp_path, WordLengths(), min_tokens=2)
    for request in (pb.EncodeRequest(texts=pb.Texts(values=["a bcd", "ef"])), token_request([1, 3], [2])):
        with pytest.raises(
            InvalidInput, match="sequence 1 is shorter than the 2 tokens that the model needs"
        ) as refused:
            await service.encode(request)
        assert (refused.value.sequence, refused.value.limit, refused.value.actual) == (1, 2, 1)
    await service.scheduler.drain(30.0)


async def test_texts_too_large_for_their_tokens_are_refused_before_they_are_tokenised(service: Service) -> None:
    with pytest.raises(InvalidInput, match=r"texts: \d+ bytes in all, and the server takes 128"):
        await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["a" * 200])))


async def test_texts_have_the_prompt_that_they_ask_for_or_else_the_default_one(tmp_path: Path) -> None:
    prompts = [pb.Prompt(name="query", text="ab ", tokens=1), pb.Prompt(name="none")]
    service = Service(tmp_path, WordLengths(), prompts=prompts, default_prompt="query", pooling_skips_prompt=False)
    for name, pooled in (("", [5, 2]), ("query", [5, 2]), ("none", [3, 1])):
        reply = await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["cde"], prompt=name)))
        assert pooled_rows(reply) == [pooled]
    with pytest.raises(InvalidInput, match="the model has no prompt 'passage'; it has 'query', 'none'"):
        await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["a"], prompt="passage")))
    assert list((await service.attend(pb.AttendRequest(texts=pb.Texts(values=["cde"])))).tokens) == ["<2>", "<3>"]
    await service.scheduler.drain(30.0)


async def test_pooling_leaves_out_a_prompt_where_the_model_does(tmp_path: Path) -> None:
    prompts = [pb.Prompt(name="query", text="ab ", tokens=1), pb.Prompt(name="none")]
    service = Service(tmp_path, WordLengths(), prompts=prompts, pooling_skips_prompt=True)
    for name, pooled in (("", [4, 3]), ("none", [4, 3]), ("query", [2, 1])):
        reply = await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["c d ef"], prompt=name)))
        # The graph gives sums; the mean of the rows after the prompt is what is expected of the last.
        assert pooled_rows(reply) == [pooled if name != "query" else [pytest.approx(4 / 3), 1]]
    await service.scheduler.drain(30.0)
