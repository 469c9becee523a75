"""How the peers are called: the bytes of a request over gRPC or HTTP, and the vector in the bytes of an answer."""

import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc
import numpy as np
from numpy.typing import NDArray

from bench.loads.http_calls import Connection, post
from bench.loads.raw_calls import ENCODE, request
from bench.peers.sentences import Sentence
from headwaiter_client.cli import load_generator
from headwaiter_client.cli.load_generator import Load, Reply
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto import open_inference_pb2 as inference

_MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Api:
    """How a server is called.

    Attributes:
        takes: "token ids" or "texts".
        message: the bytes of a request for the vector of one sentence.
        vector: the vector in the bytes of an answer.
        method: the gRPC method; empty for HTTP.
    """

    takes: str
    message: Callable[[Sentence], bytes]
    vector: Callable[[bytes], Vector]
    method: str = ""


class _Request(NamedTuple):
    number: int
    message: bytes
    tokens: int


class Answered(NamedTuple):
    """The load, and the bytes of each answer in the order of the sentences."""

    load: Load
    answers: list[bytes]


async def closed_loop(api: Api, address: str, sentences: Sequence[Sentence], requesters: int) -> Answered:
    """Send each sentence in a request; each requester waits for its answer before it sends the next request.

    Messages are prepared before, and answers are kept as bytes, so that the load generator keeps up with the servers.

    Raises:
        RuntimeError: a request failed.
    """
    requests = [_Request(number, api.message(each), len(each.ids)) for number, each in enumerate(sentences)]
    answers = [b""] * len(requests)
    async with _connected(api, address, requesters) as call:

        async def send(request: _Request, due_s: float) -> Reply:
            answers[request.number] = await call(request.message)
            return Reply(request.tokens)

        load = await load_generator.closed_loop(send, requests, requesters)
    return Answered(load, answers)


@asynccontextmanager
async def _connected(api: Api, address: str, connections: int) -> AsyncIterator[Callable[[bytes], Awaitable[bytes]]]:
    if api.method:
        async with grpc.aio.insecure_channel(address) as channel:
            # Without serializers gRPC takes and returns bytes.
            method: Any = channel.unary_unary(api.method)

            async def call(message: bytes) -> bytes:
                try:
                    answer: bytes = await method(message)
                except grpc.aio.AioRpcError as error:
                    raise RuntimeError(f"{error.code().name}: {error.details()}") from error
                return answer

            yield call
        return
    free: list[Connection] = []
    try:
        for _ in range(connections):
            free.append(await Connection.open(f"http://{address}"))  # noqa: PERF401 - a failure closes the others

        async def post_message(message: bytes) -> bytes:
            connection = free.pop()
            status, body = await connection.call(message)
            free.append(connection)
            if status != 200:
                raise RuntimeError(f"status {status}: {body[:200].decode(errors='replace')}")
            return body

        yield post_message
    finally:
        for connection in free:
            connection.close()


def lowest_cosine(vectors: Sequence[Vector], expected: Sequence[Vector]) -> float:
    """Return the lowest cosine similarity of two vectors at the same place; 0 if their sizes differ."""
    pairs = list(zip(vectors, expected, strict=True))
    if any(ours.shape != theirs.shape for ours, theirs in pairs):
        return 0.0
    return float(min(ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs) for ours, theirs in pairs))


def _headwaiter_vector(answer: bytes) -> Vector:
    return np.frombuffer(pb.EncodeResponse.FromString(answer).pooled.data, "<f4")


def _infer(model: str, name: str, datatype: str, shape: list[int], content: bytes) -> bytes:
    tensor = inference.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    message = inference.ModelInferRequest(model_name=model, inputs=[tensor], raw_input_contents=[content])
    return message.SerializeToString()


def _infer_ids(sentence: Sentence) -> bytes:
    return _infer("token_ids", "ids", "INT64", [1, len(sentence.ids)], sentence.ids.astype("<i8").tobytes())


def _infer_text(sentence: Sentence) -> bytes:
    text = sentence.text.encode()
    return _infer("texts", "texts", "BYTES", [1, 1], struct.pack("<I", len(text)) + text)


def _inferred_vector(answer: bytes) -> Vector:
    return np.frombuffer(inference.ModelInferResponse.FromString(answer).raw_output_contents[0], "<f4")


def _json_ids(path: str) -> Callable[[Sentence], bytes]:
    return lambda sentence: post(json.dumps({"ids": sentence.ids.tolist()}).encode(), path)


def _json_text(path: str) -> Callable[[Sentence], bytes]:
    return lambda sentence: post(json.dumps({"model": "texts", "input": [sentence.text]}).encode(), path)


def _openai_vector(answer: bytes) -> Vector:
    return np.array(json.loads(answer)["data"][0]["embedding"], np.float32)


def _json_vector(answer: bytes) -> Vector:
    return np.array(json.loads(answer), np.float32)


HEADWAITER = Api("token ids", lambda each: request(each.ids).message, _headwaiter_vector, ENCODE)
MINIMAL = Api("token ids", HEADWAITER.message, lambda answer: np.frombuffer(answer, "<f4"), ENCODE)
INFER_IDS = Api("token ids", _infer_ids, _inferred_vector, _MODEL_INFER)
INFER_TEXTS = Api("texts", _infer_text, _inferred_vector, _MODEL_INFER)
LITSERVE = Api("token ids", _json_ids("/predict"), _json_vector)
MOSEC = Api("token ids", _json_ids("/inference"), _json_vector)
INFINITY = Api("texts", _json_text("/embeddings"), _openai_vector)
OPENAI = Api("texts", _json_text("/v1/embeddings"), _openai_vector)
