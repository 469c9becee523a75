"""The JSON form of the page's calls, and the files of the page."""

import base64
import gzip
import json

import numpy as np
import pytest
from google.protobuf.message import Message

from headwaiter_playground.json_calls import JSON_CALLS, error_body
from headwaiter_playground.page import PAGE_HEADERS, page_file
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput, Overloaded, SequenceTooLong


def test_the_page_makes_only_calls_that_change_nothing() -> None:
    assert {"ListModels", "GetModel", "Encode", "Classify", "Attend"} <= JSON_CALLS.keys()
    assert not {"LoadModel", "UnloadModel"} & JSON_CALLS.keys()


def test_a_body_becomes_the_request_with_the_same_fields() -> None:
    ids = np.array([101, 2, 102], "<i4").tobytes()
    body = {
        "model": "m",
        "tokens": {"dtype": "DATA_TYPE_INT32", "data": base64.b64encode(ids).decode(), "lengths": [3]},
        "layers": [1],
        "query": 0,
    }
    assert JSON_CALLS["Attend"].read_request(json.dumps(body).encode()) == pb.AttendRequest(
        model="m",
        tokens=pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=ids, lengths=[3]),
        layers=[1],
        query=0,
    )


def test_a_reply_keeps_every_bit_of_its_numbers_and_names_the_fields_that_are_zero() -> None:
    vectors = np.array([[0.1, -3e-38]], "<f4")
    reply = pb.EncodeResponse(
        pooled=pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=[1, 2], data=vectors.tobytes()),
        timings=pb.Timings(compute_s=0.1 + 0.2),
    )
    written = json.loads(JSON_CALLS["Encode"].write_reply(reply))
    assert base64.b64decode(written["pooled"]["data"]) == vectors.tobytes()
    assert written["timings"]["computeS"] == 0.1 + 0.2
    assert written["timings"]["queueS"] == 0
    assert written["lengths"] == []


def test_the_weights_of_all_heads_become_a_text_of_rounded_weights() -> None:
    call = JSON_CALLS["AttendRounded"]
    assert (call.method, call.request_class) == ("Attend", pb.AttendRequest)
    weights = np.random.default_rng(7).dirichlet(np.full(40, 0.1), 40).astype("<f4")
    weights[0], weights[0, 3] = 0, 1
    tensor = pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=[1, 1, 40, 40], data=weights.tobytes())
    written = call.write_reply(pb.AttendResponse(weights=tensor, tokens=["ä"], timings=pb.Timings(compute_s=0.5)))
    fields = json.loads(written)
    assert (fields["weights"]["shape"], fields["tokens"]) == ([1, 1, 40, 40], ["ä"])
    assert (fields["timings"]["computeS"], fields["timings"]["queueS"]) == (0.5, 0)
    roots = np.array([ord(character) - 35 for character in fields["weights"]["rounded"]]) / 127
    assert np.abs(roots - np.sqrt(weights.ravel())).max() <= 0.5 / 127 + 1e-6
    # A byte for nearly all weights.
    assert len(written) < 1.2 * weights.size


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        '{"model": "m"}'.encode("utf-16"),
        '{"model": "m"}'.encode("utf-16-le"),
        '{"model": "m"}'.encode("utf-32-le"),
        b"[]",
        b"null",
        b'"text"',
        b'{"modle": "m"}',
        b'{"model": 1}',
        b'{"tokens": "a text"}',
        b'{"tokens": [1]}',
        b'{"texts": {"values": "a text"}}',
        b'{"texts": {"values": [null]}}',
        b'{"model": {}}',
        b'{"texts": "\\ud800"}',
        b'{"query": 1e999}',
        b'{"model": "\\ud800"}',
        b'{"tokens": {"data": "not base64!"}}',
        b'{"tokens": {"lengths": [-1]}}',
        b'{"layers": [1e99]}',
        b'{"query": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"texts":' * 100_000,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_body_that_is_not_the_json_of_the_request_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput) as caught:
        JSON_CALLS["Attend"].read_request(body)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"foo": 1}', "unknown field foo: see docs/reference/grpc.md#encoderequest"),
        (b'{"texts": {"foo": 1}}', "unknown field foo: see docs/reference/grpc.md#texts"),
    ],
)
def test_an_unknown_field_is_named_with_the_page_of_its_message(body: bytes, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        JSON_CALLS["Encode"].read_request(body)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", sorted(JSON_CALLS))
def test_every_call_reads_an_empty_request_and_writes_an_empty_reply(name: str) -> None:
    call = JSON_CALLS[name]
    assert call.read_request(b"{}") == call.request_class()
    written: Message = call.reply_class()
    assert isinstance(json.loads(call.write_reply(written)), dict)


@pytest.mark.parametrize(
    ("error", "code", "metadata"),
    [
        (HeadwaiterError("m"), "INTERNAL", {}),
        (Overloaded("m", retry_after_s=2.0), "RESOURCE_EXHAUSTED", {}),
        (SequenceTooLong("m", sequence=0, limit=512), "INVALID_ARGUMENT", {"sequence": "0", "limit": "512"}),
    ],
)
def test_an_error_has_its_code_its_reason_and_its_details(
    error: HeadwaiterError, code: str, metadata: dict[str, str]
) -> None:
    assert json.loads(error_body(error)) == {
        "code": code,
        "reason": pb.ErrorReason.Name(error.reason),
        "message": str(error),
        "metadata": metadata,
    }


def test_the_page_has_its_files_and_nothing_else() -> None:
    index = page_file("")
    assert index is not None
    assert index == page_file("index.html")
    assert index.headers["Content-Type"].startswith("text/html")
    assert b"<style" not in index.content
    assert b"style=" not in index.content
    for name in ("../page.py", "page.py", "/index.html", "static/index.html", ".", "..", "index.html/"):
        assert page_file(name) is None


def test_a_browser_gets_small_files_once() -> None:
    whole, small = page_file("main.js"), page_file("main.js", "br, gzip")
    assert whole is not None
    assert small is not None
    assert gzip.decompress(small.content) == whole.content
    assert (small.status, small.headers["Content-Encoding"]) == (200, "gzip")
    assert small.headers["ETag"] != whole.headers["ETag"]
    again = page_file("main.js", "gzip", f'"another", W/{small.headers["ETag"]}')
    assert again is not None
    assert (again.status, again.content) == (304, b"")
    files = [page_file(name, "gzip") for name in ("", "main.js", "style.css")]
    assert sum(len(file.content) for file in files if file) < 60_000


def test_the_headers_forbid_other_hosts_and_scripts_inside_the_page() -> None:
    policy = PAGE_HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_half_an_emoji_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"U\+D83D") as refused:
        JSON_CALLS["Attend"].read_request(rb'{"texts": {"values": ["fresh", "\ud83d rain"]}}')
    assert (refused.value.field, refused.value.sequence) == ("values", 1)
