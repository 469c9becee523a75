"""The methods of the Encoder service, from message bytes to message bytes."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Graph
from headwaiter_server.batching.admission import QueueLimits
from headwaiter_server.batching.attender import Attender
from headwaiter_server.batching.scheduler import Scheduler
from headwaiter_server.batching.worker import Worker
from headwaiter_server.config import Settings
from headwaiter_server.errors import DeadlineExceeded, Failures, InvalidInput, ModelNotFound, Unavailable
from headwaiter_server.metrics import STAGES, Recorder
from headwaiter_server.rpc.endpoint import Call, clock
from headwaiter_server.rpc.service import EncoderService, Serving
from headwaiter_server.runtime.attention import Attention, Selection
from headwaiter_server.text import TextEncoder, TextForm, Tokens
from tests.server.rpc.stand_ins import CALIBRATION, model, sample


class WordLengths:
    """Takes each word for the id that is its length."""

    def encode(self, texts: Sequence[str], form: TextForm, failures: Failures, max_total_tokens: int) -> list[Tokens]:
        encoded = [np.array([len(word) for word in (form.prompt + text).split()]) for text in texts]
        return [Tokens(ids, len(ids), np.zeros((len(ids), 2), np.int64)) for ids in encoded]

    def strings(self, ids: NDArray[np.generic]) -> list[str]:
        return [f"<{one}>" for one in ids]


class Ones:
    """Looks at every token with the number of the layer, and makes the number of the head of it."""

    def run(self, sequence: NDArray[np.generic], selection: Selection) -> Attention:
        layers, heads = np.meshgrid(selection.layers, selection.heads, indexing="ij")
        n = len(sequence)
        weights = np.tile(layers[..., None, None], (1, 1, n, n)).astype(np.float32)
        context = None if selection.query is None else heads[..., None].astype(np.float32)
        return Attention(weights, context)


class Service:
    """An open service, and its metrics."""

    def __init__(self, folder: Path, text: WordLengths | None, **manifest: Any) -> None:
        self.recorder = Recorder()
        self.model = model(folder, layers=2, heads=3, attend=Graph(file="a.onnx"), **manifest)
        settings = Settings(bundle=folder, max_request_sequences=3, max_request_tokens=8, max_attend_bytes=383)
        worker = Worker(self.model.graph, lambda: self.model.graph, self.model.probe)
        cost, limits = CALIBRATION.cost, CALIBRATION.limits
        self.scheduler = Scheduler([worker], cost, limits, QueueLimits(100, 10.0), self.recorder)
        self.rpc = EncoderService(settings, self.recorder)
        attender = Attender(Ones, self.recorder)
        self.rpc.open(Serving(self.model, cast(TextEncoder | None, text), self.scheduler, attender, CALIBRATION))

    async def encode(self, request: pb.EncodeRequest) -> pb.EncodeResponse:
        return pb.EncodeResponse.FromString(await self.rpc.encode(request.SerializeToString(), _call()))

    async def attend(self, request: pb.AttendRequest) -> pb.AttendResponse:
        return pb.AttendResponse.FromString(await self.rpc.attend(request.SerializeToString(), _call()))


def _call() -> Call:
    return Call("Encode", clock(), float("inf"))


def _tokens(*sequences: list[int], **fields: Any) -> pb.EncodeRequest:
    ids = np.concatenate([*map(np.array, sequences)]).astype("<i4")
    tokens = pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=ids.tobytes(), lengths=map(len, sequences))
    return pb.EncodeRequest(tokens=tokens, **fields)


def _pooled(reply: pb.EncodeResponse) -> list[list[float]]:
    rows: list[list[float]] = np.frombuffer(reply.pooled.data, "<f4").reshape(tuple(reply.pooled.shape)).tolist()
    return rows


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    service = Service(tmp_path, WordLengths())
    yield service
    await service.scheduler.drain(30.0)


async def test_sequences_are_answered_in_the_order_they_were_sent(service: Service) -> None:
    reply = await service.encode(_tokens([1, 2], [3], [4, 5, 6], request_id="r-1"))
    assert _pooled(reply) == [[3, 2], [3, 1], [15, 3]]
    assert list(reply.lengths) == [2, 1, 3]
    assert reply.request_id == "r-1"
    assert reply.model.name == "tiny"


async def test_texts_are_tokenised_by_the_server(service: Service) -> None:
    reply = await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["a bcd", "ef"])))
    assert _pooled(reply) == [[4, 2], [2, 1]]
    assert list(reply.lengths) == [2, 1]


async def test_while_texts_are_tokenised_others_are_answered(tmp_path: Path) -> None:
    answered = threading.Event()

    class Slow(WordLengths):
        def encode(self, *arguments: Any) -> list[Tokens]:
            assert answered.wait(30.0)
            return super().encode(*arguments)

    service = Service(tmp_path, Slow())
    slow = asyncio.create_task(service.encode(pb.EncodeRequest(texts=pb.Texts(values=["a bcd", "ef"]))))
    await asyncio.sleep(0)
    assert _pooled(await service.encode(_tokens([3]))) == [[3, 1]]
    answered.set()
    assert _pooled(await slow) == [[4, 2], [2, 1]]
    await service.scheduler.drain(30.0)


async def test_a_request_without_an_id_is_given_one_of_its_own(service: Service) -> None:
    first, second = await service.encode(_tokens([1])), await service.encode(_tokens([1]))
    assert first.request_id
    assert first.request_id != second.request_id


async def test_the_stages_add_up_to_the_time_on_the_server_and_are_counted(service: Service) -> None:
    timings = (await service.encode(_tokens([1, 1, 1], [2, 2, 2]))).timings
    stages_s = [getattr(timings, f"{stage}_s") for stage in STAGES]
    assert sum(stages_s) == pytest.approx(timings.total_s)
    assert min(stages_s) >= 0
    assert timings.batches == 2
    for stage, seconds in zip(STAGES, stages_s, strict=True):
        assert sample(service.recorder, "stage_duration_seconds_sum", stage=stage) == pytest.approx(seconds)
        assert sample(service.recorder, "stage_duration_seconds_count", stage=stage) == 1


@pytest.mark.parametrize(
    ("request_", "error", "phrase"),
    [
        (pb.EncodeRequest(), InvalidInput, "has no input: give it tokens, features or texts"),
        (_tokens([1], model="large"), ModelNotFound, "no model 'large' here"),
        (_tokens([1], truncation=pb.TRUNCATION_LEFT), InvalidInput, "truncation: that is for texts"),
        (_tokens([1], output=pb.OutputOptions(dimensions=3)), InvalidInput, "output.dimensions is 3, and the model's"),
        (_tokens([1], request_id="\n"), InvalidInput, "request_id: at most 256 printable characters"),
        (_tokens([10]), InvalidInput, "sequence 0 has id 10"),
        (pb.EncodeRequest(features=pb.FeatureSequences()), InvalidInput, "takes token ids or texts, not features"),
        (
            pb.EncodeRequest(texts=pb.Texts(values=["a"], prompt="query")),
            InvalidInput,
            "texts.prompt: the model has no prompt 'query'; it has none",
        ),
        (pb.EncodeRequest(texts=pb.Texts()), InvalidInput, "no sequences: send at least one"),
        (pb.EncodeRequest(texts=pb.Texts(values=["a"] * 4)), InvalidInput, "4 sequences, and the server takes 3"),
        (pb.EncodeRequest(texts=pb.Texts(values=["a b c"] * 3)), InvalidInput, "9 tokens, and the server takes 8"),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused_before_it_is_queued(
    service: Service, request_: pb.EncodeRequest, error: type[Exception], phrase: str
) -> None:
    with pytest.raises(error, match=phrase):
        await service.encode(request_)
    assert service.scheduler.queued_sequences == 0


async def test_a_model_without_a_tokenizer_takes_no_texts(tmp_path: Path) -> None:
    service = Service(tmp_path, None)
    with pytest.raises(InvalidInput, match="the model has no tokenizer; send token ids or features"):
        await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["a"])))
    await service.scheduler.drain(30.0)


async def test_where_no_token_attends_to_itself_a_text_of_one_token_is_refused_too(tmp_path: Path) -> None:
    service = Service(tmp_path, WordLengths(), min_tokens=2)
    for request in (pb.EncodeRequest(texts=pb.Texts(values=["a bcd", "ef"])), _tokens([1, 3], [2])):
        with pytest.raises(
            InvalidInput, match="sequence 1 is shorter than the 2 tokens that the model needs"
        ) as refused:
            await service.encode(request)
        assert (refused.value.sequence, refused.value.limit, refused.value.actual) == (1, 2, 1)
    await service.scheduler.drain(30.0)


async def test_attention_to_a_text_comes_with_its_tokens_and_the_context_of_the_query(service: Service) -> None:
    texts = pb.Texts(values=["a bcd"])
    reply = await service.attend(pb.AttendRequest(texts=texts, layers=[1, 0], heads=[2], query=1, request_id="r-1"))
    assert (reply.request_id, reply.model.name, list(reply.tokens)) == ("r-1", "tiny", ["<1>", "<3>"])
    assert (list(reply.weights.shape), list(reply.context.shape)) == ([2, 1, 2, 2], [2, 1, 1])
    assert np.frombuffer(reply.weights.data, "<f4").tolist() == [1] * 4 + [0] * 4
    assert np.frombuffer(reply.context.data, "<f4").tolist() == [2, 2]


async def test_attention_to_ids_comes_without_tokens_and_its_stages_add_up(service: Service) -> None:
    reply = await service.attend(pb.AttendRequest(tokens=_tokens([1, 2, 3]).tokens))
    assert (list(reply.weights.shape), list(reply.tokens), reply.HasField("context")) == ([2, 3, 3, 3], [], False)
    stages_s = [getattr(reply.timings, f"{stage}_s") for stage in STAGES]
    assert sum(stages_s) == pytest.approx(reply.timings.total_s)
    assert min(stages_s) >= 0
    assert reply.timings.batches == 1
    assert sample(service.recorder, "stage_duration_seconds_count", stage="compute") == 1


@pytest.mark.parametrize(
    ("request_", "error", "phrase"),
    [
        (pb.AttendRequest(), InvalidInput, "has no input: give it tokens, features or texts"),
        (pb.AttendRequest(model="large"), ModelNotFound, "no model 'large' here"),
        (pb.AttendRequest(request_id="\n"), InvalidInput, "request_id: at most 256 printable characters"),
        (pb.AttendRequest(tokens=_tokens([1], [2]).tokens), InvalidInput, "Attend takes exactly one"),
        (pb.AttendRequest(tokens=_tokens([10]).tokens), InvalidInput, "sequence 0 has id 10"),
        (pb.AttendRequest(texts=pb.Texts()), InvalidInput, "no sequences: send at least one"),
        (
            pb.AttendRequest(texts=pb.Texts(values=["a"], prompt="query")),
            InvalidInput,
            "texts.prompt: the model has no prompt 'query'; it has none",
        ),
        (pb.AttendRequest(texts=pb.Texts(values=["a"]), layers=[2]), InvalidInput, "layers are 0 to 1"),
        (pb.AttendRequest(tokens=_tokens([1, 2, 3, 4]).tokens), InvalidInput, "take 384 bytes, and the server comp"),
    ],
)
async def test_a_request_for_attention_that_cannot_be_served_is_refused(
    service: Service, request_: pb.AttendRequest, error: type[Exception], phrase: str
) -> None:
    with pytest.raises(error, match=phrase):
        await service.attend(request_)


async def test_the_model_is_listed_and_described(service: Service) -> None:
    listed = pb.ListModelsResponse.FromString(await service.rpc.list_models(b"", _call()))
    assert [(one.name, one.digest) for one in listed.models] == [("tiny", "ab" * 32)]
    for name in ("", "tiny"):
        request = pb.GetModelRequest(name=name).SerializeToString()
        described = pb.GetModelResponse.FromString(await service.rpc.get_model(request, _call()))
        assert described.model == listed.models[0]
        assert described.execution.token_budget == CALIBRATION.limits.tokens
        assert described.attends


@pytest.mark.parametrize(
    ("raw", "error"), [(b"\xff", InvalidInput), (pb.GetModelRequest(name="x").SerializeToString(), ModelNotFound)]
)
async def test_another_model_is_not_described(service: Service, raw: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        await service.rpc.get_model(raw, _call())


async def test_until_its_model_is_ready_a_server_says_that_it_is_starting(tmp_path: Path) -> None:
    starting = EncoderService(Settings(bundle=tmp_path), Recorder())
    for method in (starting.encode, starting.attend, starting.get_model, starting.list_models):
        with pytest.raises(Unavailable, match="starting: wait until its health check says SERVING"):
            await method(b"", _call())


async def test_bytes_that_are_no_message_are_refused_by_every_method(service: Service) -> None:
    for method in (service.rpc.encode, service.rpc.attend, service.rpc.get_model, service.rpc.list_models):
        with pytest.raises(InvalidInput, match=r"not a headwaiter\.v1\."):
            await method(b"\xff", _call())


async def test_texts_too_large_for_their_tokens_are_refused_before_they_are_tokenised(service: Service) -> None:
    with pytest.raises(InvalidInput, match=r"texts: \d+ bytes in all, and the server takes 128"):
        await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["a" * 200])))


async def test_a_request_may_be_worth_nothing_before_its_call_is(service: Service) -> None:
    with pytest.raises(DeadlineExceeded):
        await service.encode(_tokens([1], timeout_s=1e-9))


async def test_texts_have_the_prompt_that_they_ask_for_or_else_the_default_one(tmp_path: Path) -> None:
    prompts = [pb.Prompt(name="query", text="ab ", tokens=1), pb.Prompt(name="none")]
    service = Service(tmp_path, WordLengths(), prompts=prompts, default_prompt="query", pooling_skips_prompt=False)
    for name, pooled in (("", [5, 2]), ("query", [5, 2]), ("none", [3, 1])):
        reply = await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["cde"], prompt=name)))
        assert _pooled(reply) == [pooled]
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
        assert _pooled(reply) == [pooled if name != "query" else [pytest.approx(4 / 3), 1]]
    await service.scheduler.drain(30.0)


async def test_a_partial_request_gets_the_answers_of_the_sequences_that_are_good(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    reply = await service.encode(_tokens([1, 2], [3, 10], [4], partial=True, request_id="r-1"))
    assert (_pooled(reply), list(reply.lengths)) == ([[3, 2], [0, 0], [4, 1]], [2, 0, 1])
    (failure,) = reply.failures
    assert (failure.sequence, failure.reason) == (1, pb.INVALID_INPUT)
    assert failure.message == "tokens: sequence 1 has id 10 at position 1, and ids are 0 to 9"
    assert [record.getMessage() for record in caplog.records] == [
        f"Encode r-1: InvalidInput: 1 sequences failed, the first: {failure.message}"
    ]


async def test_a_partial_request_whose_sequences_are_all_bad_is_answered_without_running_any(service: Service) -> None:
    reply = await service.encode(_tokens([10], [11], partial=True, output=pb.OutputOptions(pooled=True, hidden=True)))
    assert (_pooled(reply), list(reply.lengths), list(reply.hidden.shape)) == ([[0, 0], [0, 0]], [0, 0], [0, 2])
    assert [failure.sequence for failure in reply.failures] == [0, 1]
    stages_s = [getattr(reply.timings, f"{stage}_s") for stage in STAGES]
    assert (sum(stages_s), reply.timings.batches) == (pytest.approx(reply.timings.total_s), 0)
    assert min(stages_s) >= 0


async def test_a_partial_request_that_is_wrong_as_a_whole_is_refused(service: Service) -> None:
    with pytest.raises(InvalidInput, match="4 sequences, and the server takes 3"):
        await service.encode(_tokens([1], [1], [1], [1], partial=True))


async def test_large_hidden_rows_come_back_as_small_ones_do(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwaiter_server.rpc.service._LARGE_REPLY_TOKENS", 3)
    reply = await service.encode(_tokens([3, 4], [5, 6], output=pb.OutputOptions(hidden=True)))
    rows = np.frombuffer(reply.hidden.data, "<f4").reshape(tuple(reply.hidden.shape))
    assert rows.tolist() == [[3, 1], [4, 1], [5, 1], [6, 1]]
