"""Tokenize, and the paths of TEI and vLLM, give the tokens of the bundle's own tokenizer, which Encode encodes."""

import json
import urllib.error
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status
from tokenizers import Tokenizer

from headwaiter_client import Client
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.encoder_pb2_grpc import EncoderStub
from testbed.server_process import RunningServer
from tests.support.e2e.http_calls import post_json

LONG = "The bread is fresh, please. " * 8
TEXTS = ["The bread is fresh.", "", "rain 🌧️ falls, 雨", "[SEP] a [CLS]", LONG]


@pytest.fixture(scope="module")
def oracle(text_bundle: Path) -> Tokenizer:
    return Tokenizer.from_file(str(text_bundle / "tokenizer.json"))


@pytest.fixture(scope="module")
def client(text_server: RunningServer) -> Any:
    with Client(text_server.address) as client:
        yield client


def tokenize(server: RunningServer, **fields: Any) -> pb.TokenizeResponse:
    with grpc.insecure_channel(server.address) as channel:
        stub = EncoderStub(channel)  # type: ignore[no-untyped-call]
        reply: pb.TokenizeResponse = stub.Tokenize(pb.TokenizeRequest(**fields))
        return reply


def post(server: RunningServer, path: str, **fields: Any) -> Any:
    return post_json(server.metrics_url.replace("/metrics", path), fields)


def refusal(server: RunningServer, path: str, **fields: Any) -> tuple[int, Any]:
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(server, path, **fields)
    with refused.value as error:
        return error.code, json.load(error)


def test_ids_offsets_and_strings_are_those_of_the_tokenizer(client: Client, oracle: Tokenizer) -> None:
    found = client.tokenize(TEXTS, offsets=True, strings=True)
    expected = [oracle.encode(text) for text in TEXTS]
    assert [each.tolist() for each in found.ids] == [each.ids for each in expected]
    assert [each.tolist() for each in found.offsets] == [[*map(list, each.offsets)] for each in expected]
    assert [list(each) for each in found.strings] == [each.tokens for each in expected]
    assert found.max_tokens == 32 < found.lengths[-1]
    assert client.count_tokens(TEXTS) == [len(each.ids) for each in expected] == found.lengths.tolist()
    assert found.model.name == "tiny-text"


@pytest.mark.parametrize("side", ["left", "right"])
def test_truncation_keeps_the_tokens_that_encode_keeps(side: Any, client: Client, oracle: Tokenizer) -> None:
    found = client.tokenize(["a", LONG], truncation=side, offsets=True)
    whole = oracle.encode(LONG)
    kept = [0, *(range(1, 31) if side == "right" else range(len(whole.ids) - 31, len(whole.ids) - 1)), -1]
    assert found.ids[1].tolist() == [whole.ids[place] for place in kept]
    assert found.offsets[1].tolist() == [list(whole.offsets[place]) for place in kept]
    assert found.truncated == {1: len(whole.ids)} == client.encode(["a", LONG], truncation=side).truncated


def test_ids_can_be_encoded(client: Client) -> None:
    texts = TEXTS[:-1]
    found = client.tokenize(texts)
    assert np.array_equal(client.encode_tokens(found.ids).pooled, client.encode(texts).pooled)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, None),
        ({"texts": pb.Texts()}, None),
        ({"texts": pb.Texts(values=["a"] * 9)}, None),
        ({"texts": pb.Texts(values=["a"], prompt="none")}, "texts.prompt"),
        ({"pairs": pb.Pairs(first=["a"], second=["b"])}, "pairs"),
        ({"texts": pb.Texts(values=["a" * 2000])}, "texts"),
        ({"texts": pb.Texts(values=["a"]), "truncation": 9}, "truncation"),
        ({"texts": pb.Texts(values=["a"]), "request_id": "a\n"}, "request_id"),
    ],
)
def test_wrong_requests_are_refused(fields: Any, field: str | None, text_server: RunningServer) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        tokenize(text_server, **fields)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    status = rpc_status.from_call(cast("grpc.Call", refused.value))
    assert status is not None
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.metadata.get("field") == field


def test_the_path_of_tei_has_the_tokens_with_their_places(http_server: RunningServer, oracle: Tokenizer) -> None:
    expected = []
    for text in TEXTS:
        tokens = oracle.encode(text)
        parts = zip(tokens.ids, tokens.tokens, tokens.offsets, tokens.special_tokens_mask, strict=True)
        expected.append(
            [
                {"id": each, "text": string, "special": True, "start": None, "stop": None}
                if special
                else {"id": each, "text": text[start:stop], "special": False, "start": start, "stop": stop}
                for each, string, (start, stop), special in parts
            ]
        )
    assert post(http_server, "/tokenize", inputs=TEXTS, add_special_tokens=True) == expected
    assert post(http_server, "/models/tiny-text/tokenize", inputs=LONG) == expected[-1:]


def test_the_path_of_vllm_has_the_ids(http_server: RunningServer, oracle: Tokenizer) -> None:
    tokens = oracle.encode(LONG)
    reply = post(http_server, "/tokenize", model="tiny-text", prompt=LONG, return_token_strs=True)
    assert reply == {
        "count": len(tokens.ids),
        "max_model_len": 32,
        "tokens": tokens.ids,
        "token_strs": tokens.tokens,
    }
    assert post(http_server, "/tokenize", prompt=LONG)["token_strs"] is None


def test_decoded_ids_are_those_of_the_tokenizer(http_server: RunningServer, oracle: Tokenizer) -> None:
    sequences = [oracle.encode(text).ids for text in TEXTS]
    assert len(sequences[-1]) > 32
    plain = [oracle.decode(each) for each in sequences]
    assert post(http_server, "/decode", ids=sequences) == plain
    assert post(http_server, "/decode", ids=sequences[0]) == plain[:1]
    with_special = [oracle.decode(each, skip_special_tokens=False) for each in sequences]
    assert with_special != plain
    assert post(http_server, "/decode", ids=sequences, skip_special_tokens=False) == with_special
    for each, text in zip([*sequences, []], [*with_special, ""], strict=True):
        assert post(http_server, "/detokenize", model="tiny-text", tokens=each) == {"prompt": text}


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("/tokenize", {"inputs": ["a", 1]}, "inputs"),
        ("/tokenize", {"inputs": "a", "add_special_tokens": False}, "add_special_tokens"),
        ("/tokenize", {"inputs": "a", "prompt_name": "none"}, "prompt_name"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"inputs": ["a"] * 4097}, "4096"),
        ("/decode", {"ids": [[1], 2]}, "sequence 1 of ids"),
        ("/decode", {"ids": [-1]}, "ids"),
        ("/decode", {"ids": [[1], [10**6]]}, "sequence 1 has id 1000000"),
        ("/detokenize", {"tokens": [[1]]}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
    ],
)
def test_wrong_bodies_are_refused(path: str, fields: Any, words: str, http_server: RunningServer) -> None:
    status, body = refusal(http_server, path, **fields)
    assert status == 400
    assert words in str(body)
