"""An EncodeResponse becomes the ModelInferResponse that the request asked for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import Failures, InvalidInput
from headwaiter_proto.rules.outputs import read_output
from headwaiter_proto.rules.responses import fill
from headwaiter_proto.rules.sequences import ParsedInput
from headwaiter_server.open_inference.infer_requests import WantedReply
from headwaiter_server.open_inference.infer_responses import (
    infer_response,
    padded_answer_bytes,
)
from tests.support.e2e.open_inference_caller import arrays
from tests.support.server.stand_ins import model

UNPADDED = WantedReply("", (), raw=True)
POOLED = np.array([[1, 2], [3, 4]], np.float32)
HIDDEN = np.arange(6, dtype=np.float32).reshape(3, 2)


def response(*, pooled: bool = True, hidden: bool = True) -> pb.EncodeResponse:
    reply = pb.EncodeResponse(lengths=[1, 2], model=pb.ModelRef(name="m", version="3"))
    if pooled:
        fill(reply.pooled, POOLED, pb.DATA_TYPE_FLOAT32)
    if hidden:
        fill(reply.hidden, HIDDEN, pb.DATA_TYPE_FLOAT32)
    return reply


@pytest.mark.parametrize("raw", [True, False])
def test_outputs_have_the_order_of_the_request(raw: bool) -> None:
    reply = infer_response(response(), WantedReply("r-1", ("token_count", "hidden", "pooled"), raw))
    assert (reply.model_name, reply.model_version, reply.id) == ("m", "3", "r-1")
    found = arrays(reply)
    assert list(found) == ["token_count", "hidden", "pooled"]
    assert found["token_count"].tolist() == [1, 2]
    assert found["hidden"].tolist() == [[[0, 1], [0, 0]], [[2, 3], [4, 5]]]
    np.testing.assert_array_equal(found["pooled"], POOLED)
    assert len(reply.raw_output_contents) == (3 if raw else 0)


def test_rows_of_some_tokens_are_not_at_the_places_of_the_tokens() -> None:
    reply = response()
    reply.lengths[:] = [3, 4]
    reply.rows.extend([1, 2])
    kept = np.array([[False, True, True, True], [True, True, True, True]])
    found = arrays(infer_response(reply, WantedReply("", ("hidden", "token_count"), raw=True, kept=kept)))
    assert found["hidden"].tolist() == [[[0, 1], [0, 0]], [[2, 3], [4, 5]]]
    assert found["token_count"].tolist() == [1, 2]


@pytest.mark.parametrize(("parts", "name"), [({"hidden": False}, "pooled"), ({"pooled": False}, "hidden")])
def test_a_request_without_outputs_gets_the_default_output(parts: dict[str, Any], name: str) -> None:
    reply = infer_response(response(**parts), WantedReply("", (), raw=True))
    assert [output.name for output in reply.outputs] == [name]


def test_vectors_and_rows_of_different_widths_count_by_their_own_width(tmp_path: Path) -> None:
    described = model(tmp_path, width=3, hidden_width=5)
    parsed = ParsedInput([np.arange(1), np.arange(4)], Failures())
    both = read_output(pb.OutputOptions(pooled=True, hidden=True), described.bundle.manifest)
    # 2 vectors of 3 values; 5 packed rows and 2 · 4 padded rows of 5 values; 4 bytes a value.
    expected = (2 * 3 + (5 + 8) * 5) * 4
    assert padded_answer_bytes(parsed, both, described.bundle.manifest, UNPADDED, max_reply_bytes=expected) == expected


def test_padding_counts_towards_the_size_of_a_reply(tmp_path: Path) -> None:
    described = model(tmp_path)
    parsed = ParsedInput([np.arange(1), np.arange(4), np.arange(1)], Failures())
    pooled, both = (
        read_output(pb.OutputOptions(pooled=True, hidden=hidden), described.bundle.manifest) for hidden in (False, True)
    )
    # Vectors and rows have 2 values of 4 bytes: 3 vectors; 3 vectors, 6 packed rows and 3 · 4 padded rows.
    assert padded_answer_bytes(parsed, pooled, described.bundle.manifest, UNPADDED, max_reply_bytes=0) == 3 * 8
    assert (
        padded_answer_bytes(parsed, both, described.bundle.manifest, UNPADDED, max_reply_bytes=96) == (3 + 6 + 12) * 8
    )
    with pytest.raises(InvalidInput, match=r"\[3, 4, 2\]") as refused:
        padded_answer_bytes(parsed, both, described.bundle.manifest, UNPADDED, max_reply_bytes=95)
    assert (refused.value.limit, refused.value.actual) == (95, 96)
    # The rows have the places of the request's mask, which has 5 positions.
    wanted = WantedReply("", (), raw=True, kept=np.ones((3, 5), np.bool_))
    with pytest.raises(InvalidInput, match=r"\[3, 5, 2\]") as refused:
        padded_answer_bytes(parsed, both, described.bundle.manifest, wanted, max_reply_bytes=96)
    assert refused.value.actual == 120
