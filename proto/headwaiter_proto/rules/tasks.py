"""What models do, and the error of a request that asks a model for something else."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import InvalidInput

_NAMES = {
    pb.TASK_ENCODE: "encodes",
    pb.TASK_CLASSIFY: "classifies",
    pb.TASK_CLASSIFY_TOKENS: "classifies tokens",
    pb.TASK_RERANK: "reranks",
    pb.TASK_ATTEND: "attends",
}


@dataclass(frozen=True, slots=True)
class Ability:
    """Something that a request needs and that only some models can do.

    Attributes:
        words: what such a model does, to follow "a model that".
        has: returns whether a model can do it.
        suits: returns whether a model was made for it.
    """

    words: str
    has: Callable[[Manifest], bool]
    suits: Callable[[Manifest], bool]


def tasks(manifest: Manifest) -> list[pb.Task]:
    """Return what a model does."""
    done = [pb.TASK_ENCODE] if _gives_vectors(manifest) or _gives_rows(manifest) else []
    if _scores_labels(manifest):
        head = manifest.head
        done.append(pb.TASK_CLASSIFY_TOKENS if head.per_token else pb.TASK_CLASSIFY)
        if manifest.takes_pairs and not head.per_token and len(head.labels) == 1:
            done.append(pb.TASK_RERANK)
    if manifest.HasField("attend"):
        done.append(pb.TASK_ATTEND)
    return done


def weighs_tokens(manifest: Manifest) -> bool:
    """Return whether the scores of a model's head are the weights of tokens in a sparse vector."""
    return manifest.head.per_token and manifest.head.function == pb.SCORE_FUNCTION_RELU


def _has_head(manifest: Manifest) -> bool:
    return manifest.HasField("head")


def _scores_labels(manifest: Manifest) -> bool:
    return _has_head(manifest) and not weighs_tokens(manifest)


def _gives_vectors(manifest: Manifest) -> bool:
    return manifest.pooling != pb.POOLING_NONE


def _gives_rows(manifest: Manifest) -> bool:
    return not manifest.without_rows


def _gives_sparse_vectors(manifest: Manifest) -> bool:
    return manifest.sparse or weighs_tokens(manifest)


def _classifies(manifest: Manifest) -> bool:
    return pb.TASK_CLASSIFY in tasks(manifest)


def _reranks(manifest: Manifest) -> bool:
    return pb.TASK_RERANK in tasks(manifest)


SCORES = Ability("gives scores", _has_head, _scores_labels)
# A model with a head often has a pooling too, and its vectors are of little use.
VECTORS = Ability(
    "gives pooled vectors",
    _gives_vectors,
    lambda each: _gives_vectors(each) and not _scores_labels(each) and not each.sparse,
)
SPARSE_VECTORS = Ability("gives sparse vectors", _gives_sparse_vectors, _gives_sparse_vectors)
ROWS = Ability("gives a row for each token", _gives_rows, lambda each: _gives_rows(each) and not _scores_labels(each))
# A reranker classifies with a single label.
CLASSIFIES = Ability("classifies", _classifies, lambda each: _classifies(each) and not _reranks(each))
RERANKS = Ability("reranks", _reranks, _reranks)


def _tokenizes(manifest: Manifest) -> bool:
    return manifest.max_text_tokens > 0


TOKENIZES = Ability("has a tokenizer", _tokenizes, _tokenizes)


def of_texts(wanted: Ability) -> Ability:
    """Return the same ability for a request of texts: no other models than those of texts were made for it."""
    return replace(wanted, suits=lambda each: wanted.suits(each) and _tokenizes(each))


def wrong_model(name: str, manifest: Manifest, wanted: Ability, able: Sequence[str] = ()) -> InvalidInput:
    """Return the error of a request that needs an ability which its model lacks.

    Args:
        name: name of the model in requests.
        manifest: the manifest of the model.
        wanted: what the request needs.
        able: names of models of the server that would do.
    """
    does = " and ".join(_NAMES[task] for task in tasks(manifest))
    if wanted.words in (VECTORS.words, SPARSE_VECTORS.words):
        does += f", without {wanted.words.removeprefix('gives ')}"
    remedy = f"send one of {', '.join(map(repr, able))}" if able else f"name a model that {wanted.words}"
    return InvalidInput(f"the request needs a model that {wanted.words}, and {name!r} {does}: {remedy}", field="model")
