"""A source and a target become one sequence, and a reply has the rows of the target."""

from typing import Any

import numpy as np
import pytest

from headwaiter_client import Client, FakeEncoder, InvalidInput, source_and_target
from headwaiter_proto import encoder_pb2 as pb
from tests.support.documents import ENCODER_CONFIG, blocks

IDS: dict[str, Any] = {"vocabulary_size": 10, "feature_width": 0, "target": pb.TargetFormat(start_id=3)}
FEATURES: dict[str, Any] = {"vocabulary_size": 0, "feature_width": 3, "target": pb.TargetFormat()}


def client_of(**choices: Any) -> Client:
    return Client(transport=FakeEncoder(**choices))


@pytest.mark.parametrize(
    ("choices", "source", "target", "expected"),
    [
        (IDS, [5, 6], [3, 7], [5, 6, 3, 7]),
        (IDS, np.array([0]), (3,), [0, 3]),
        (FEATURES, [[1, 2]], np.array([[3, 4], [5, 6]]), [[1, 2, 0], [3, 4, 1], [5, 6, 1]]),
    ],
)
def test_a_model_takes_the_joined_sequence_and_answers_with_the_rows_of_the_target(
    choices: dict[str, Any], source: Any, target: Any, expected: list[Any]
) -> None:
    client = client_of(**choices)
    joined = source_and_target(source, target, client.model())
    assert joined.tolist() == expected
    encoding = client.encode_features([joined]) if choices is FEATURES else client.encode_tokens([joined])
    assert encoding.hidden is not None
    assert [len(rows) for rows in encoding.hidden] == [len(target)]
    assert encoding.lengths.tolist() == [len(expected)]


def test_the_example_of_the_page_on_models_encodes_pairs() -> None:
    (block,) = (block for block in blocks(ENCODER_CONFIG, "python") if "source_and_target" in block)
    names: dict[str, Any] = {"pairs": [([5, 6], [3, 7]), ([0], [3])], "fake": FakeEncoder(**IDS)}
    exec(compile(block.replace('"localhost:50051"', "transport=fake"), ENCODER_CONFIG.name, "exec"), names)
    assert [len(rows) for rows in names["encoding"].hidden] == [2, 1]


@pytest.mark.parametrize(
    ("choices", "source", "target", "facts"),
    [
        ({}, [1], [2], ["fake", "target"]),
        (IDS, [], [3], ["source is empty"]),
        (IDS, [[1]], [3], ["sequence 0", "dimensions"]),
        (IDS, [1], [4], ["target", "id 3"]),
        (IDS, [3], [3], ["id 3"]),
        (IDS, ["a"], [3], ["sequence 0", "integers"]),
        (IDS, [1], np.ma.masked_array([3, 4], [False, True]), ["sequence 1", "masked"]),
        (FEATURES, [[1, 2]], np.empty((0, 2)), ["target is empty"]),
        (FEATURES, [[1, 2]], [[1, 2, 3]], ["sequence 1", "width 3", "width 2"]),
        (FEATURES, [[1, 2, 3]], [[1, 2, 3]], ["3 values", "rows of 2"]),
        (FEATURES, [[1, 2], [3]], [[1, 2]], ["sequence 0", "not an array"]),
        (FEATURES, [[1j, 2]], [[1, 2]], ["sequence 0", "complex"]),
    ],
)
def test_parts_that_make_no_sequence_are_refused(
    choices: dict[str, Any], source: Any, target: Any, facts: list[str]
) -> None:
    with pytest.raises(InvalidInput) as refused:
        source_and_target(source, target, client_of(**choices).model())
    assert all(fact in str(refused.value) for fact in facts)
