"""The Open Inference Protocol over real gRPC gives the answers of headwaiter.v1, and obeys the same limits."""

from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status

from headwaiter_proto import open_inference_pb2 as oip
from tests.support.e2e.in_process_server import connect, serving
from tests.support.e2e.open_inference_caller import arrays, calling, id_request, raw_request, refusal

IDS = [[1, 2, 3], [4], [5, 6]]
TEXTS = ["fresh bread", "rain"]


def padded_ids(*, left: bool = False) -> tuple[Any, Any]:
    """Return IDS padded to [3, 3], and their attention mask."""
    ids, mask = np.zeros((3, 3), np.int64), np.zeros((3, 3), np.int64)
    for row, sequence in enumerate(IDS):
        place = slice(3 - len(sequence), None) if left else slice(len(sequence))
        ids[row, place], mask[row, place] = sequence, 1
    return ids, mask


async def test_each_input_gets_the_answer_of_headwaiter_v1(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, connect(server) as client, calling(server) as caller:
        texts = await client.encode(TEXTS)
        answer = await caller.infer(raw_request("tiny-text", texts=TEXTS))
        assert answer.keys() == {"pooled"}
        np.testing.assert_array_equal(answer["pooled"], texts.pooled)
        tokens = await client.encode_tokens(IDS, hidden=True)
        for left in (False, True):
            for dtype in (np.int64, np.int32):
                ids, mask = (values.astype(dtype) for values in padded_ids(left=left))
                outputs = ("token_count", "hidden", "pooled")
                answer = await caller.infer(raw_request("tiny-text", outputs, input_ids=ids, attention_mask=mask))
                assert list(answer) == list(outputs)
                assert answer["token_count"].tolist() == [3, 1, 2]
                np.testing.assert_array_equal(answer["pooled"], tokens.pooled)
                # The rows have the places of the ids, whichever side the padding is on.
                assert answer["hidden"].shape == (*ids.shape, 32)
                np.testing.assert_array_equal(answer["hidden"][mask == 1], np.concatenate(tokens.hidden))
                assert not answer["hidden"][mask == 0].any()


async def test_errors_have_the_code_the_details_and_the_message_of_headwaiter_v1(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, calling(server) as caller:
        error = await refusal(caller.ModelInfer(raw_request("tiny-text", texts=["bread", "long " * 40])))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "sequence 1" in str(error.details())
        details = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
        info = error_details_pb2.ErrorInfo()
        Status.FromString(bytes(details)).details[0].Unpack(info)
        assert (info.reason, info.metadata["sequence"]) == ("SEQUENCE_TOO_LONG", "1")
        for request, code, value in (
            (id_request(1, model="other"), grpc.StatusCode.NOT_FOUND, "'other'"),
            (id_request(1, model_version="7"), grpc.StatusCode.NOT_FOUND, "'7'"),
            (id_request(1000), grpc.StatusCode.INVALID_ARGUMENT, "1000"),
            (id_request(*[1] * 65), grpc.StatusCode.INVALID_ARGUMENT, "65"),
            (oip.ModelInferRequest(), grpc.StatusCode.INVALID_ARGUMENT, "'input_ids'"),
        ):
            error = await refusal(caller.ModelInfer(request))
            assert error.code() is code
            assert value in str(error.details())
        assert (await refusal(caller.ModelMetadata(oip.ModelMetadataRequest(name="x")))).code().name == "NOT_FOUND"


async def test_a_stream_answers_in_order_and_continues_after_errors(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, calling(server) as caller:
        requests = [id_request(*[1] * length) for length in (40, 3, 65, 2)]
        requests[2].id = "too long"
        replies = [reply async for reply in caller.ModelStreamInfer(requests)]
        assert [bool(reply.error_message) for reply in replies] == [False, False, True, False]
        assert replies[2].infer_response.id == "too long"
        assert replies[2].error_message.startswith("[request id: too long] sequence 0")
        for request, reply in zip(requests, replies, strict=True):
            if not reply.error_message:
                alone = await caller.infer(request)
                np.testing.assert_allclose(arrays(reply.infer_response)["pooled"], alone["pooled"], rtol=0, atol=1e-6)
                assert reply.infer_response.parameters["triton_final_response"].bool_param


async def test_a_stream_ends_with_the_first_error_if_the_caller_asks_for_grpc_errors(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, calling(server) as caller:
        call = caller.ModelStreamInfer(metadata=(("triton_grpc_error", "true"),))
        await call.write(id_request(1))
        assert (await call.read()).infer_response.outputs
        await call.write(id_request(1000))
        error = await refusal(call.read())
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "1000" in str(error.details())
