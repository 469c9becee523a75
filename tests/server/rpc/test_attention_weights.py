"""What Attend may ask for and what it answers, and the sentence that refuses the rest before anything is computed."""

import re
from typing import Any

import numpy as np
import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Graph, Manifest
from headwaiter_server.errors import InvalidInput, ModelNotFound, Unimplemented
from headwaiter_server.metrics import STAGES
from headwaiter_server.rpc.attention_weights import check_offered, check_single, select
from headwaiter_server.runtime.attention_weights import AttentionSelection
from tests.server.rpc.opened import Service, token_request
from tests.server.rpc.stand_ins import sample

MODEL = Manifest(name="tiny", layers=3, heads=4)
# The weights of 5 tokens take 4 heads · 25 · 4 bytes = 400 bytes a layer.
TOKENS, LAYER_BYTES = 5, 400
PLENTY = 1 << 20


def _select(limit_bytes: int = PLENTY, **fields: Any) -> AttentionSelection:
    return select(pb.AttendRequest(**fields), TOKENS, MODEL, limit_bytes)


def test_everything_is_shown_unless_less_is_asked_for() -> None:
    everything = _select()
    assert (list(everything.layers), list(everything.heads), everything.query) == ([0, 1, 2], [0, 1, 2, 3], None)
    assert _select(layers=[2, 0], heads=[3], query=0) == AttentionSelection([2, 0], [3], 0)
    assert _select(query=4).query == 4


@pytest.mark.parametrize(
    ("fields", "field", "limit", "sentence"),
    [
        ({"layers": [0, 3]}, "layers", 2, "layers has 3, and the model's layers are 0 to 2"),
        ({"heads": [4]}, "heads", 3, "heads has 4, and the model's heads are 0 to 3"),
        ({"query": 5}, "query", 4, "query is 5, and the sequence's positions are 0 to 4"),
        ({"layers": [1, 0, 1]}, "layers", None, "layers names one of them twice: name each once"),
        ({"heads": [2, 2]}, "heads", None, "heads names one of them twice: name each once"),
        ({"layers": [9] * 4}, "layers", 3, "layers has 4 numbers, and the model has 3 layers: name each once"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(
    fields: dict[str, Any], field: str, limit: int | None, sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=f"^{re.escape(sentence)}$") as refusal:
        _select(**fields)
    assert (refusal.value.field, refusal.value.limit) == (field, limit)


def test_as_many_bytes_as_the_limit_are_computed_and_not_one_more() -> None:
    assert len(_select(2 * LAYER_BYTES, layers=[0, 1]).layers) == 2
    with pytest.raises(InvalidInput, match=r"take 800 bytes, .* computes 799 at most: ask for at most 1 of") as refusal:
        _select(2 * LAYER_BYTES - 1, layers=[0, 1])
    assert (refusal.value.field, refusal.value.limit, refusal.value.actual) == ("layers", 799, 800)


def test_the_heads_that_are_not_shown_are_computed_too() -> None:
    with pytest.raises(InvalidInput, match="the weights of 3 layers, 4 heads and 5 × 5 tokens take 1200 bytes"):
        _select(1199, heads=[0])


def test_a_sequence_too_long_for_any_layer_is_told_how_long_it_may_be() -> None:
    with pytest.raises(InvalidInput, match="no sequence of more than 4 tokens can be looked at"):
        _select(LAYER_BYTES - 1, layers=[0])
    assert select(pb.AttendRequest(layers=[0]), 4, MODEL, LAYER_BYTES - 1).layers == [0]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.AttendRequest(tokens=pb.TokenSequences(lengths=[1, 2])), "tokens.lengths"),
        (pb.AttendRequest(features=pb.FeatureSequences(lengths=[1, 2])), "features.lengths"),
        (pb.AttendRequest(texts=pb.Texts(values=["a", "b"])), "texts.values"),
    ],
)
def test_two_sequences_are_refused_by_their_field(request_: pb.AttendRequest, field: str) -> None:
    with pytest.raises(InvalidInput, match="the request has 2 sequences, and Attend takes exactly one") as refusal:
        check_single(request_)
    assert (refusal.value.field, refusal.value.limit, refusal.value.actual) == (field, 1, 2)


def test_a_bundle_without_the_graph_says_how_to_get_it() -> None:
    check_offered(Manifest(attend=Graph(file="attend.fp32.onnx")))
    with pytest.raises(Unimplemented, match=r"the bundle of tiny has no graph .*: export the model again"):
        check_offered(MODEL)


async def test_attention_to_a_text_comes_with_its_tokens_and_the_context_of_the_query(service: Service) -> None:
    texts = pb.Texts(values=["a bcd"])
    reply = await service.attend(pb.AttendRequest(texts=texts, layers=[1, 0], heads=[2], query=1, request_id="r-1"))
    assert (reply.request_id, reply.model.name, list(reply.tokens)) == ("r-1", "tiny", ["<1>", "<3>"])
    assert (list(reply.weights.shape), list(reply.context.shape)) == ([2, 1, 2, 2], [2, 1, 1])
    assert np.frombuffer(reply.weights.data, "<f4").tolist() == [1] * 4 + [0] * 4
    assert np.frombuffer(reply.context.data, "<f4").tolist() == [2, 2]


async def test_attention_to_ids_comes_without_tokens_and_its_stages_add_up(service: Service) -> None:
    reply = await service.attend(pb.AttendRequest(tokens=token_request([1, 2, 3]).tokens))
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
        (pb.AttendRequest(tokens=token_request([1], [2]).tokens), InvalidInput, "Attend takes exactly one"),
        (pb.AttendRequest(tokens=token_request([10]).tokens), InvalidInput, "sequence 0 has id 10"),
        (pb.AttendRequest(texts=pb.Texts()), InvalidInput, "no sequences: send at least one"),
        (
            pb.AttendRequest(texts=pb.Texts(values=["a"], prompt="query")),
            InvalidInput,
            "texts.prompt: the model has no prompt 'query'; it has none",
        ),
        (pb.AttendRequest(texts=pb.Texts(values=["a"]), layers=[2]), InvalidInput, "layers are 0 to 1"),
        (
            pb.AttendRequest(tokens=token_request([1, 2, 3, 4]).tokens),
            InvalidInput,
            "take 384 bytes, and the server comp",
        ),
    ],
)
async def test_a_request_for_attention_that_cannot_be_served_is_refused(
    service: Service, request_: pb.AttendRequest, error: type[Exception], phrase: str
) -> None:
    with pytest.raises(error, match=phrase):
        await service.attend(request_)
