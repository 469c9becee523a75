"""What a reply shall hold: what the request asks for, and where it does not say, the model's own choice."""

from dataclasses import dataclass

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.errors import InvalidInput
from headwaiter_server.rpc.tensors import DTYPES
from headwaiter_server.runtime.pooling import POOLINGS


@dataclass(slots=True)
class Output:
    """What a reply holds.

    Attributes:
        pooled: one vector a sequence.
        hidden: one vector a token.
        pooling: how rows become a vector.
        graph_pools: whether the model's graph pools so by itself.
        normalized: scale pooled vectors to unit length.
        dimensions: how many of a pooled vector's to keep, the first.
        pooled_dtype: data type of pooled vectors.
        hidden_dtype: data type of hidden rows.
    """

    pooled: bool
    hidden: bool
    pooling: pb.Pooling
    graph_pools: bool
    normalized: bool
    dimensions: int
    pooled_dtype: pb.DataType
    hidden_dtype: pb.DataType

    def needs_rows(self, skipped_tokens: int) -> bool:
        """Tell whether hidden rows are needed, to return or to pool, where pooling leaves so many of them out."""
        return self.hidden or not self.graph_pools or skipped_tokens > 0


def read_output(options: pb.OutputOptions, manifest: Manifest) -> Output:
    """Return what the reply to a request shall hold.

    Raises:
        InvalidInput: naming the field that asks for what the model cannot give.
    """
    pooling = options.pooling or manifest.pooling
    if pooling not in (*POOLINGS, pb.POOLING_NONE):
        raise InvalidInput("output.pooling: MEAN, CLS, MAX, LAST or NONE", field="output.pooling")
    pools = pooling != pb.POOLING_NONE
    if options.pooled and not pools:
        why = "it is asked for without pooling" if options.pooling else "the model has no pooling"
        raise InvalidInput(
            f"output.pooled: {why}; choose one in output.pooling, or ask for hidden", field="output.pooled"
        )
    for field, dtype in (("output.dtype", options.dtype), ("output.hidden_dtype", options.hidden_dtype)):
        if dtype not in (pb.DATA_TYPE_UNSPECIFIED, *DTYPES):
            raise InvalidInput(f"{field}: replies are FLOAT32, FLOAT16 or INT8", field=field)
    if options.dimensions > manifest.width:
        raise InvalidInput(
            f"output.dimensions is {options.dimensions}, and the model's vectors have {manifest.width}",
            field="output.dimensions",
            limit=manifest.width,
            actual=options.dimensions,
        )
    dtype = options.dtype or pb.DATA_TYPE_FLOAT32
    return Output(
        pooled=pools and (options.pooled or not options.hidden),
        hidden=options.hidden or not pools,
        pooling=pooling,
        graph_pools=pooling == manifest.pooling,
        normalized=options.normalize if options.HasField("normalize") else manifest.normalized,
        dimensions=options.dimensions or manifest.width,
        pooled_dtype=dtype,
        hidden_dtype=options.hidden_dtype or dtype,
    )
