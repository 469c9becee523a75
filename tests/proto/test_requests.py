"""Messages, ids, models and options of requests are checked, and errors name the field and its value."""

from typing import Any

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules import requests
from headwaiter_proto.rules.errors import InvalidInput

MODEL = Manifest(name="tiny", vocabulary_size=10, max_tokens=4, width=8, pooling=pb.POOLING_MEAN)


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        ({"truncation": pb.TRUNCATION_RIGHT, "features": pb.FeatureSequences()}, "truncation", "features"),
        ({"timeout_s": float("nan")}, "timeout_s", "nan"),
        ({"timeout_s": float("inf")}, "timeout_s", "inf"),
        ({"timeout_s": -1.5}, "timeout_s", "-1.5"),
        ({"output": pb.OutputOptions(offsets=True), "features": pb.FeatureSequences()}, "output.offsets", "features"),
    ],
)
def test_an_option_that_is_unknown_or_does_not_fit_is_refused(fields: dict[str, Any], field: str, value: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        requests.read_options(pb.EncodeRequest(**fields), MODEL)
    assert refusal.value.field == field
    assert field in str(refusal.value)
    assert value in str(refusal.value)


@pytest.mark.parametrize(
    ("request_id", "value"), [("7" * 257, "257"), ("7\nERROR forged", r"'\n'"), ("\x1b[2J", r"'\x1b'")]
)
def test_an_id_that_would_break_the_log_or_the_reply_is_refused(request_id: str, value: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        requests.check_id(request_id)
    assert refusal.value.field == "request_id"
    assert value in str(refusal.value)
    assert str(refusal.value).isprintable()
    for good in ("", "7" * 256, "grüße 7"):
        requests.check_id(good)


def test_a_pair_in_a_template_has_no_offsets() -> None:
    request = pb.EncodeRequest(pairs=pb.Pairs(first=["q"], second=["a"]), output=pb.OutputOptions(offsets=True))
    requests.read_options(request, MODEL)
    templated = Manifest()
    templated.CopyFrom(MODEL)
    templated.pair_template.before = "Query: "
    with pytest.raises(InvalidInput) as refusal:
        requests.read_options(request, templated)
    assert refusal.value.field == "output.offsets"
