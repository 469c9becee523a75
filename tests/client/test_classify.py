"""`classify` and `rerank` of both clients, over a fake server that applies the server's rules."""

from typing import Any

import numpy as np
import pytest

from headwaiter_client import (
    Classification,
    FakeEncoder,
    HeadwaiterError,
    InvalidInput,
    LabelScore,
    OutputMissing,
    RankedDocument,
    SequenceTooLong,
)
from headwaiter_proto import encoder_pb2 as pb
from tests.support.client.client_runner import ClientRunner

DOCUMENTS = ["rain falls on stone", "fresh bread", "rain and bread", "a table"]


def reranker(**options: Any) -> FakeEncoder:
    return FakeEncoder(labels=["relevance"], max_tokens=16, **options)


def length_scores(pair: tuple[str, str]) -> list[float]:
    return [len(pair[1])]


def test_texts_have_a_score_for_each_label(runner: ClientRunner) -> None:
    fake = FakeEncoder(labels=["no", "yes"], scores=lambda text: [0.25, len(text)])
    result: Classification = runner.call(fake, "classify", ["a", "bcd"])
    assert result.labels == ("no", "yes")
    assert result.scores.tolist() == [[0.25, 1], [0.25, 3]]
    assert result.best == [LabelScore("yes", 1.0), LabelScore("yes", 3.0)]
    assert (result.lengths.tolist(), result.failures) == ([3, 3], {})
    assert result.model.name == "fake"
    for output in ("token_scores", "token_best"):
        with pytest.raises(OutputMissing, match="best or scores"):
            getattr(result, output)
    with pytest.raises(OutputMissing, match="offsets=True"):
        _ = result.offsets


def test_a_long_list_takes_several_requests_and_keeps_its_order(runner: ClientRunner) -> None:
    fake = FakeEncoder(labels=["length"], scores=lambda text: [float(text)])
    done: list[tuple[int, int]] = []
    texts = [str(number) for number in range(600)]
    result = runner.call(fake, "classify", texts, progress=lambda *counts: done.append(counts), offsets=True)
    np.testing.assert_array_equal(result.scores[:, 0], range(600))
    assert len(result.offsets) == 600
    assert sum(isinstance(request, pb.ClassifyRequest) for request in fake.requests) == 3
    assert done[-1] == (600, 600)


def test_tokens_have_scores_of_their_own_and_offsets(runner: ClientRunner) -> None:
    fake = FakeEncoder(
        labels=["word", "number"],
        per_token=True,
        scores=lambda text: [[0, 0], *([not word.isdigit(), word.isdigit()] for word in text.split()), [0, 0]],
    )
    result = runner.call(fake, "classify", ["two 2", "3"], offsets=True)
    assert [rows.shape for rows in result.token_scores] == [(4, 2), (3, 2)]
    assert [label for label, _ in result.token_best[0]] == ["word", "word", "number", "word"]
    assert result.offsets[0].tolist() == [[0, 0], [0, 3], [4, 5], [0, 0]]
    for output in ("scores", "best"):
        with pytest.raises(OutputMissing, match="token_best or token_scores"):
            getattr(result, output)


def test_token_scores_of_several_requests_are_joined(runner: ClientRunner) -> None:
    fake = FakeEncoder(labels=["one", "two"], per_token=True)
    result = runner.call(fake, "classify", ["a b"] * 300)
    assert len(result.token_scores) == 300
    assert {rows.shape for rows in result.token_scores} == {(4, 2)}


def test_documents_are_ranked_by_the_score_of_their_pair_with_the_query(runner: ClientRunner) -> None:
    fake = reranker(scores=length_scores)
    ranking = runner.call(fake, "rerank", "bread", DOCUMENTS)
    assert [each.index for each in ranking.documents] == [0, 2, 1, 3]
    assert ranking.documents[0] == RankedDocument(0, 19.0, "rain falls on stone")
    (request,) = fake.requests
    assert isinstance(request, pb.ClassifyRequest)
    assert (list(request.pairs.first), list(request.pairs.second)) == (["bread"], DOCUMENTS)
    best = runner.call(reranker(scores=length_scores), "rerank", "bread", DOCUMENTS, top_n=2)
    assert [each.index for each in best.documents] == [0, 2]


def test_documents_whose_scores_are_equal_have_the_order_of_their_logits(runner: ClientRunner) -> None:
    # The sigmoids of these logits are 1 in float32.
    fake = reranker(scores=lambda pair: [20.0 + len(pair[1])])
    fake._manifest.head.function = pb.SCORE_FUNCTION_SIGMOID
    ranking = runner.call(fake, "rerank", "bread", DOCUMENTS, top_n=3)
    assert [(each.index, each.score) for each in ranking.documents] == [(0, 1.0), (2, 1.0), (1, 1.0)]


def test_documents_of_equal_scores_keep_their_order(runner: ClientRunner) -> None:
    ranking = runner.call(reranker(scores=lambda _: [1.0]), "rerank", "q", DOCUMENTS)
    assert [each.index for each in ranking.documents] == [0, 1, 2, 3]


def test_the_fake_ranks_documents_that_share_words_with_the_query_first(runner: ClientRunner) -> None:
    ranking = runner.call(reranker(), "rerank", "fresh bread", DOCUMENTS)
    best = ranking.documents[0]
    assert (best.index, best.score) == (1, pytest.approx(1.0))
    pairs = runner.call(FakeEncoder(labels=["a", "b"]), "classify", [("x", "y"), ("x", "z"), ("y", "z")])
    assert pairs.scores.shape == (3, 2)


def test_one_bad_pair_hurts_no_other_pair(runner: ClientRunner) -> None:
    documents = ["one", "\ud800", "three words here", "w " * 20, 7]
    ranking = runner.call(reranker(scores=length_scores), "rerank", "q", documents, partial=True)
    assert [each.index for each in ranking.documents] == [2, 0]
    assert {index: type(error) for index, error in ranking.failures.items()} == {
        1: InvalidInput,
        3: SequenceTooLong,
        4: InvalidInput,
    }
    with pytest.raises(InvalidInput) as refused:
        runner.call(reranker(), "rerank", "q", ["one", "\ud800"])
    assert (refused.value.sequence, refused.value.field) == (1, "pairs")


def test_a_query_that_leaves_no_room_for_the_document_is_refused(runner: ClientRunner) -> None:
    with pytest.raises(SequenceTooLong, match="ONLY_SECOND") as refused:
        runner.call(reranker(), "rerank", "q " * 13, ["one two"], truncation="right", pair_truncation="only_second")
    assert (refused.value.field, refused.value.actual) == ("pairs.first", 18)


def test_raw_scores_are_logits_and_the_options_reach_the_server(runner: ClientRunner) -> None:
    fake = FakeEncoder(labels=["a"])
    options: dict[str, Any] = {"raw_scores": True, "priority": "bulk", "model": "fake", "prompt": "query"}
    runner.call(fake, "classify", ["text"], request_id="r", **options)
    (request,) = fake.requests
    assert isinstance(request, pb.ClassifyRequest)
    assert request.output.raw_scores
    assert (request.priority, request.texts.prompt, request.request_id) == (pb.PRIORITY_BULK, "query", "r")


def test_token_ids_and_features_have_scores_too(runner: ClientRunner) -> None:
    for sequences in ([[1, 2, 3], [4]], [np.ones((2, 3)), np.ones((1, 3))]):
        fake = FakeEncoder(labels=["a", "b"], feature_width=3)
        assert runner.call(fake, "classify", sequences).scores.shape == (2, 2)


@pytest.mark.parametrize("method", ["classify", "rerank"])
def test_a_model_without_a_head_is_named(method: str, runner: ClientRunner) -> None:
    arguments = (["text"],) if method == "classify" else ("q", ["d"])
    with pytest.raises(InvalidInput) as refused:
        runner.call(FakeEncoder(model="encoder-only"), method, *arguments)
    assert "encoder-only" in str(refused.value)


@pytest.mark.parametrize("options", [{"labels": ["a", "b"]}, {"labels": ["a"], "per_token": True}])
def test_a_model_with_several_scores_does_not_rerank(options: dict[str, Any], runner: ClientRunner) -> None:
    with pytest.raises(InvalidInput) as refused:
        runner.call(FakeEncoder(**options), "rerank", "q", ["d"])
    assert "fake" in str(refused.value)


@pytest.mark.parametrize(
    ("sequences", "options", "field"),
    [
        ([("a", 1)], {}, "pairs"),
        ([("a", "b", "c")], {}, "pairs"),
        ([("a", "b"), "c"], {}, "pairs"),
        ([("a", "\ud800")], {}, "pairs"),
        (["text"], {"pair_truncation": "only_second"}, "pairs.pair_truncation"),
        ([("a", "b")], {"pair_truncation": "only_second", "prompt": "query"}, "texts.prompt"),
        ([("a", "b")], {"pair_truncation": "shortest"}, "pair_truncation"),
        ([("a", "b")], {"prompt": "query"}, "texts.prompt"),
    ],
)
def test_a_wrong_argument_is_named(
    sequences: list[Any], options: dict[str, Any], field: str, runner: ClientRunner
) -> None:
    with pytest.raises(InvalidInput) as refused:
        runner.call(reranker(), "classify", sequences, **options)
    assert refused.value.field == field


def test_wrong_types_are_type_errors(runner: ClientRunner) -> None:
    for options in ({"hidden": True}, {"raw_scores": 1}, {"pair_truncation": 2}):
        with pytest.raises(TypeError):
            runner.call(reranker(), "classify", ["text"], **options)
    with pytest.raises(TypeError):
        runner.call(reranker(), "rerank", "q", ["d"], top_n="2")
    with pytest.raises(InvalidInput, match="offsets"):
        runner.call(reranker(), "rerank", "q", ["d"], offsets=True)
    for documents, top_n in (("d", None), (["d"], 0), ([], None)):
        with pytest.raises(InvalidInput):
            runner.call(reranker(), "rerank", "q", documents, top_n=top_n)


def test_a_failed_sequence_has_no_label(runner: ClientRunner) -> None:
    result = runner.call(FakeEncoder(labels=["a", "b"], max_tokens=4), "classify", ["one", "w " * 9], partial=True)
    assert result.best[1].label == ""
    assert np.isnan(result.best[1].score)
    assert result.scores[1].tolist() == [0, 0]
    per_token = FakeEncoder(labels=["a", "b"], per_token=True, max_tokens=4)
    assert runner.call(per_token, "classify", ["one", "w " * 9], partial=True).token_best[1] == []


def test_pairs_that_are_too_large_together_are_sent_in_smaller_requests(runner: ClientRunner) -> None:
    fake = reranker(max_request_tokens=64, scores=length_scores)
    documents = [f"{index:03} " + "w " * 10 for index in range(20)]
    ranking = runner.call(fake, "rerank", "q", documents)
    assert [each.index for each in ranking.documents] == list(range(20))
    assert len(fake.requests) > 4


@pytest.mark.parametrize("change", [{"lengths": [1, 1]}, {"scores": pb.Tensor()}, {"head": pb.Head(labels="abc")}])
def test_a_reply_that_does_not_fit_together_is_refused(change: dict[str, Any], runner: ClientRunner) -> None:
    class Changed(FakeEncoder):
        def unary(self, *arguments: Any) -> bytes:
            reply = pb.ClassifyResponse.FromString(super().unary(*arguments))
            for name, value in change.items():
                reply.ClearField(name)
                reply.MergeFrom(pb.ClassifyResponse(**{name: value}))
            return reply.SerializeToString()

    with pytest.raises(HeadwaiterError, match="same version"):
        runner.call(Changed(labels=["a"]), "classify", ["text"])


@pytest.mark.parametrize("per_token", [False, True])
def test_scores_of_a_wrong_shape_are_the_tests_mistake(per_token: bool, runner: ClientRunner) -> None:
    fake = FakeEncoder(labels=["a", "b"], per_token=per_token, scores=lambda _: [1, 2, 3])
    with pytest.raises(ValueError, match="2 labels"):
        runner.call(fake, "classify", ["text"])


def test_the_offsets_of_a_pair_are_positions_in_its_second_text(runner: ClientRunner) -> None:
    fake, text = FakeEncoder(labels=["start", "end"], per_token=True), "fresh bread  today"
    result = runner.call(fake, "classify", [("which bread?", text), ("one", "")], offsets=True)
    found = [[text[begin:end] for begin, end in offsets.tolist()] for offsets in result.offsets]
    assert found == [["", "", "", "", "fresh", "bread", "today", ""], [""] * 4]
