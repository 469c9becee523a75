"""Calls a server with tritonclient over HTTP, and prints a table of what was tried.

usage: python tritonclient_http_calls.py FACTS

The server has the models "tiny-text" and "tiny-features", and runs with --model-control on. FACTS is a file of JSON
with the address of HTTP and what gRPC answers: url, texts, text_vectors, features, feature_vectors.
"""

import asyncio
import json
import sys
import traceback
from importlib.metadata import version
from pathlib import Path

import numpy as np
import tritonclient.http as http
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

FACTS = json.loads(Path(sys.argv[1]).read_text())
TEXT, FEATURES = "tiny-text", "tiny-features"
PADDED, MASK = np.array([[1, 2, 3], [0, 0, 4]]), np.array([[1, 1, 1], [0, 0, 1]])
CLIENT = http.InferenceServerClient(FACTS["url"], concurrency=4)


def inputs(module=http, binary=True, **arrays):
    made = []
    for name, array in arrays.items():
        made.append(module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        made[-1].set_data_from_numpy(array, binary_data=binary)
    return made


def outputs(*names, binary=True):
    return [http.InferRequestedOutput(name, binary_data=binary) for name in names]


def texts(*values):
    return np.array([value.encode() for value in values], object)[:, None]


def near(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)


def health_and_descriptions():
    assert CLIENT.is_server_live()
    assert CLIENT.is_server_ready()
    assert CLIENT.is_model_ready(TEXT)
    assert CLIENT.is_model_ready(TEXT, "1")
    assert not CLIENT.is_model_ready("other")
    assert "binary_tensor_data" in CLIENT.get_server_metadata()["extensions"]
    assert [each["name"] for each in CLIENT.get_model_metadata(TEXT)["outputs"]] == ["pooled", "hidden", "token_count"]
    assert CLIENT.get_model_config(TEXT)["max_batch_size"] == 4096
    assert {each["name"] for each in CLIENT.get_model_repository_index()} == {TEXT, FEATURES}
    CLIENT.infer(TEXT, inputs(text=texts("a", "b")))
    (counted,) = CLIENT.get_inference_statistics(TEXT)["model_stats"]
    assert counted["inference_count"] >= 2
    assert len(CLIENT.get_inference_statistics()["model_stats"]) == 2
    return "health, metadata, configuration, statistics, index"


def values_as_bytes_and_as_json():
    for binary in (True, False):
        for wanted in (None, outputs("pooled"), outputs("pooled", binary=False)):
            answer = CLIENT.infer(TEXT, inputs(binary=binary, text=texts(*FACTS["texts"])), outputs=wanted)
            near(answer.as_numpy("pooled"), FACTS["text_vectors"])
        answer = CLIENT.infer(FEATURES, inputs(binary=binary, features=np.float32(FACTS["features"])))
        near(answer.as_numpy("pooled"), FACTS["feature_vectors"])
    return "the vectors of gRPC"


def places():
    for dtype in (np.int64, np.int32):
        sent = inputs(input_ids=PADDED.astype(dtype), attention_mask=MASK.astype(dtype), token_type_ids=0 * MASK)
        answer = CLIENT.infer(TEXT, sent, outputs=outputs("hidden", "token_count"))
        assert answer.as_numpy("hidden").shape == (2, 3, 32)
        assert (answer.as_numpy("hidden").any(axis=2) == MASK).all()
        assert answer.as_numpy("token_count").tolist() == [3, 1]
    return "`hidden` has the shape of `input_ids`; padding on the left"


def parameters():
    answer = CLIENT.infer(
        TEXT,
        inputs(text=texts("bread " * 60)),
        request_id="r-1",
        sequence_id=7,
        priority=2,
        timeout=10_000_000,
        parameters={"truncation": "right", "dimensions": 4},
    )
    assert answer.get_response()["id"] == "r-1"
    assert answer.as_numpy("pooled").shape == (1, 4)
    return "id, sequence_id, priority, timeout, truncation, dimensions"


def error_of(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except InferenceServerException as error:
        return error
    raise AssertionError("no error")


def errors():
    long = error_of(CLIENT.infer, TEXT, inputs(text=texts("a", "bread " * 60)))
    assert (long.status(), "sequence 1" in long.message()) == ("400", True)
    assert error_of(CLIENT.infer, "other", inputs(text=texts("a"))).status() == "404"
    assert error_of(CLIENT.infer, TEXT, inputs(text=texts("a")), model_version="7").status() == "404"
    assert error_of(CLIENT.infer, TEXT, inputs(text=texts("a")), outputs=outputs("other")).status() == "400"
    large = error_of(CLIENT.infer, TEXT, inputs(text=texts("a")), request_compression_algorithm="gzip")
    assert large.status() == "415"
    return "too long, unknown model, version and output; compressed"


def load_and_unload():
    CLIENT.unload_model(FEATURES)
    assert not CLIENT.is_model_ready(FEATURES)
    CLIENT.load_model(FEATURES)
    assert CLIENT.is_model_ready(FEATURES)
    return "unload and load"


def several_at_once():
    calls = [CLIENT.async_infer(TEXT, inputs(text=texts(text))) for text in FACTS["texts"]]
    near([call.get_result().as_numpy("pooled")[0] for call in calls], FACTS["text_vectors"])

    async def gather():
        async with http_aio.InferenceServerClient(FACTS["url"]) as client:
            calls = [client.infer(TEXT, inputs(text=texts(text))) for text in FACTS["texts"]]
            return [answer.as_numpy("pooled")[0] for answer in await asyncio.gather(*calls)]

    near(asyncio.run(gather()), FACTS["text_vectors"])
    return "`async_infer` and `http.aio`"


failed = False
for check in (
    health_and_descriptions,
    values_as_bytes_and_as_json,
    places,
    parameters,
    errors,
    load_and_unload,
    several_at_once,
):
    try:
        result = check()
    except Exception:  # noqa: BLE001 - a row of the table says that the check failed
        traceback.print_exc()
        result, failed = "FAILED", True
    print(f"| tritonclient {version('tritonclient')} over HTTP | {check.__name__.replace('_', ' ')} | {result} |")
sys.exit(failed)
