"""Descriptions of models that are read from replies, without a network."""

from typing import Any

from headwaiter_client.calls.models import describe
from headwaiter_proto import encoder_pb2 as pb


def test_a_description_has_names_instead_of_numbers() -> None:
    message = pb.GetModelResponse(
        model=pb.ModelRef(name="mine", digest="d", precision=pb.PRECISION_INT8, version="3"),
        tasks=[pb.TASK_ENCODE, pb.TASK_CLASSIFY_TOKENS],
        pooling=pb.POOLING_MEAN_SQRT_LEN,
        poolings=[pb.POOLING_CLS, pb.POOLING_MEAN_SQRT_LEN],
        head=pb.Head(labels=["a", "b"], function=pb.SCORE_FUNCTION_SOFTMAX, per_token=True),
        width=8,
        hidden_width=4,
        limits=pb.RequestLimits(max_sequences=7),
    )
    model = describe(message)
    assert (model.model.name, model.model.precision, model.model.version) == ("mine", "int8", "3")
    assert model.tasks == {"encode", "classify_tokens"}
    assert (model.pooling, model.poolings) == ("mean_sqrt_len", ("cls", "mean_sqrt_len"))
    assert (model.head.labels, model.head.function, model.head.per_token) == (("a", "b"), "softmax", True)
    assert (model.width, model.hidden_width, model.limits.max_sequences) == (8, 4, 7)
    assert model.message is message


def test_a_model_without_pooling_and_an_older_servers_description_are_read() -> None:
    model = describe(pb.GetModelResponse(width=8, pooling=pb.POOLING_NONE))
    assert (model.pooling, model.poolings, model.tasks) == ("none", (), frozenset())
    assert (model.hidden_width, model.head.labels, model.image.patch_size) == (8, (), 0)


def test_names_that_this_client_does_not_know_are_left_out() -> None:
    unknown: Any = 99
    head = pb.Head(labels=["a"], function=unknown)
    model = describe(pb.GetModelResponse(tasks=[unknown], pooling=unknown, poolings=[unknown], head=head))
    assert (model.tasks, model.pooling, model.poolings, model.head.function) == (frozenset(), "", (), "")
