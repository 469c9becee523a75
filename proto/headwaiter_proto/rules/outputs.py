"""Decide which outputs a reply holds: those that the request asks for, or the defaults of the model."""

from collections.abc import Collection
from dataclasses import dataclass

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.classification import read_head
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.pooling import POOLINGS, POOLINGS_OF_GRAPHS
from headwaiter_proto.rules.target import takes_target
from headwaiter_proto.rules.tasks import ROWS, SPARSE_VECTORS, weighs_tokens, wrong_model

_REPLY_TYPES = (pb.DATA_TYPE_UNSPECIFIED, pb.DATA_TYPE_FLOAT32, pb.DATA_TYPE_FLOAT16, pb.DATA_TYPE_INT8)


@dataclass(slots=True)
class WantedOutput:
    """The outputs of a reply.

    Attributes:
        pooled: whether the reply has a vector for each sequence.
        hidden: whether the reply has a row for each token.
        pooling: how the rows of a sequence become its vector.
        graph_pools: whether the model's graph computes this pooling.
        normalized: whether pooled vectors are scaled to unit length.
        dimensions: number of leading dimensions of pooled vectors to keep.
        pooled_dtype: data type of pooled vectors.
        hidden_dtype: data type of hidden rows.
        sparse: whether the vectors are sparse, as entries.
        head: the head whose scores the reply has, and how its logits become scores; None to leave scores out.
        logits: whether the reply has the logits of the head, too.
        unweighted_ids: the token ids that sparse vectors of token weights leave out; None for a reply without these.
    """

    pooled: bool
    hidden: bool
    pooling: pb.Pooling
    graph_pools: bool
    normalized: bool
    dimensions: int
    pooled_dtype: pb.DataType
    hidden_dtype: pb.DataType
    sparse: bool = False
    head: pb.Head | None = None
    logits: bool = False
    unweighted_ids: Collection[int] | None = None

    def needs_rows(self, skipped_tokens: int) -> bool:
        """Return whether the hidden rows are needed, for the reply or for a pooling that the graph cannot compute.

        The graph cannot leave out the first `skipped_tokens` rows, which are those of a prompt.
        """
        return self.hidden or (self.pooled and (not self.graph_pools or skipped_tokens > 0))


def read_output(options: pb.OutputOptions, manifest: Manifest) -> WantedOutput:
    """Return the outputs of the reply to a request.

    Raises:
        InvalidInput: the request asks for an output that the model cannot give.
    """
    head = read_head(options, manifest)
    pooling = options.pooling or manifest.pooling
    if pooling not in (*POOLINGS, *POOLINGS_OF_GRAPHS, pb.POOLING_NONE):
        names = ", ".join(map(_pooling_name, POOLINGS))
        raise InvalidInput(f"output.pooling {pooling} is unknown: send {names} or NONE", field="output.pooling")
    if pooling not in (*poolings(manifest), pb.POOLING_NONE):
        offered = ", ".join(map(_pooling_name, poolings(manifest) or (manifest.pooling,)))
        what = "sparse vectors come from" if manifest.sparse else "the model has only vectors of the pooling"
        what = "the pooling of a model with targets is" if takes_target(manifest) else what
        raise InvalidInput(
            f"output.pooling is {_pooling_name(pooling)}; {what} {offered}: leave the field empty, or send NONE for "
            "hidden rows",
            field="output.pooling",
        )
    pools = pooling != pb.POOLING_NONE
    pooled = options.pooled or (options.sparse and manifest.sparse)
    if pooled and not pools:
        reason = "output.pooling is NONE" if options.pooling else "the model has no pooling"
        advice = "" if takes_target(manifest) else "choose another output.pooling, or "
        raise InvalidInput(
            f"output.pooled is set, and {reason}: {advice}set output.hidden instead",
            field="output.pooled",
        )
    for field, dtype in (("output.dtype", options.dtype), ("output.hidden_dtype", options.hidden_dtype)):
        if dtype not in _REPLY_TYPES:
            raise InvalidInput(f"{field} is {dtype_name(dtype)}: choose FLOAT32, FLOAT16 or INT8", field=field)
    if options.dimensions > manifest.width:
        raise InvalidInput(
            f"output.dimensions is {options.dimensions}; the model's vectors have {manifest.width}: choose at most "
            f"{manifest.width}",
            field="output.dimensions",
            limit=manifest.width,
            actual=options.dimensions,
        )
    if options.sparse and not SPARSE_VECTORS.has(manifest):
        raise wrong_model(manifest.name, manifest, SPARSE_VECTORS)
    if options.sparse and options.dense and manifest.sparse:
        raise InvalidInput("output.sparse and output.dense are set: set one of them", field="output.sparse")
    sparse, weighs = manifest.sparse and not options.dense, options.sparse and weighs_tokens(manifest)
    if (sparse or weighs) and options.dtype == pb.DATA_TYPE_INT8:
        raise InvalidInput("output.dtype is INT8; sparse vectors take FLOAT32 or FLOAT16", field="output.dtype")
    if manifest.sparse and options.dimensions:
        raise InvalidInput(
            "output.dimensions is set, and the dimensions of sparse vectors are token ids, of which none come first: "
            "leave it out",
            field="output.dimensions",
        )
    dtype = options.dtype or pb.DATA_TYPE_FLOAT32
    nothing_chosen = not (pooled or options.hidden or options.scores or weighs)
    hidden = options.hidden or (nothing_chosen and not pools)
    if hidden and not ROWS.has(manifest):
        raise wrong_model(manifest.name, manifest, ROWS)
    return WantedOutput(
        pooled=pools and (pooled or nothing_chosen),
        hidden=hidden,
        pooling=pooling,
        graph_pools=pooling == manifest.pooling,
        normalized=options.normalize if options.HasField("normalize") else manifest.normalized,
        dimensions=options.dimensions or manifest.width,
        pooled_dtype=dtype,
        hidden_dtype=options.hidden_dtype or dtype,
        sparse=sparse,
        head=head,
        logits=options.logits,
        unweighted_ids=manifest.unweighted_ids if weighs else None,
    )


def poolings(manifest: Manifest) -> Collection[pb.Pooling]:
    """Return the poolings that a request may name, besides NONE."""
    if takes_target(manifest) or (manifest.without_rows and manifest.pooling == pb.POOLING_NONE):
        return ()
    return (manifest.pooling,) if manifest.fixed_pooling else POOLINGS


def hidden_width(manifest: Manifest) -> int:
    """Return the number of values of a hidden row; 0 for a model without rows."""
    return 0 if manifest.without_rows else manifest.hidden_width or manifest.width


def _pooling_name(pooling: pb.Pooling) -> str:
    return pb.Pooling.Name(pooling).removeprefix("POOLING_")


def dtype_name(dtype: pb.DataType) -> str:
    """Return the name of a data type, or the number of a type that only newer clients know."""
    known = dtype in pb.DataType.values()
    return pb.DataType.Name(dtype).removeprefix("DATA_TYPE_") if known else str(dtype)
