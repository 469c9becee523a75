"""Describe models, their versions and their statistics in messages of the Open Inference Protocol. Pure functions."""

from collections.abc import Iterable, Sequence

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.outputs import hidden_width
from headwaiter_proto.rules.tasks import ROWS, SCORES
from headwaiter_server.metrics.totals import Total, Totals
from headwaiter_server.models.model_version import ModelState, VersionStatus
from headwaiter_server.models.served_model import ModelFacts, ServedModel
from headwaiter_server.requests.options import PRIORITIES

# The name that Triton gives to ONNX graphs in ONNX Runtime.
_PLATFORM, _BACKEND = "onnxruntime_onnx", "onnxruntime"
# Any length.
_ANY = -1
_CONFIG_TYPES = {
    "BYTES": oip.TYPE_STRING,
    "INT32": oip.TYPE_INT32,
    "INT64": oip.TYPE_INT64,
    "FP32": oip.TYPE_FP32,
}
_STATES = {
    ModelState.ON_DISK: "UNAVAILABLE",
    ModelState.LOADING: "LOADING",
    ModelState.READY: "READY",
    ModelState.DRAINING: "UNLOADING",
    ModelState.FAILED: "UNAVAILABLE",
}
# The stages of a request in each of Triton's durations.
_DURATIONS = {
    "queue": ("queue",),
    "compute_input": ("tokenize", "assemble"),
    "compute_infer": ("compute",),
    "compute_output": ("respond",),
}
_NS_PER_S, _MS_PER_S = 1_000_000_000, 1_000

_Tensor = tuple[str, str, list[int]]


def model_metadata(facts: ModelFacts) -> oip.ModelMetadataResponse:
    """Describe the inputs and the outputs of a model."""
    reply = oip.ModelMetadataResponse(name=facts.name, versions=[facts.version], platform=_PLATFORM)
    for name, datatype, dims in _inputs(facts.manifest):
        reply.inputs.add(name=name, datatype=datatype, shape=[_ANY, *dims])
    for name, datatype, dims in _outputs(facts.manifest):
        reply.outputs.add(name=name, datatype=datatype, shape=[_ANY, *dims])
    return reply


def model_config(facts: ModelFacts, max_request_sequences: int) -> oip.ModelConfig:
    """Describe how a model is batched and where it runs; a request has at most `max_request_sequences` sequences."""
    config = oip.ModelConfig(
        name=facts.name,
        platform=_PLATFORM,
        backend=_BACKEND,
        version_policy=oip.ModelVersionPolicy(latest=oip.ModelVersionPolicy.Latest(num_versions=1)),
        max_batch_size=max_request_sequences,
        default_model_filename=facts.graph_file,
        model_transaction_policy=oip.ModelTransactionPolicy(decoupled=False),
        response_cache=oip.ModelResponseCache(enable=False),
    )
    for name, datatype, dims in _inputs(facts.manifest):
        # A request has one of several inputs, so each one is optional.
        config.input.add(name=name, data_type=_CONFIG_TYPES[datatype], dims=dims, optional=True)
    for name, datatype, dims in _outputs(facts.manifest):
        output = config.output.add(name=name, data_type=_CONFIG_TYPES[datatype], dims=dims or [1])
        if not dims:
            output.reshape.SetInParent()
    batching = config.dynamic_batching
    batching.priority_levels, batching.default_priority_level = len(PRIORITIES), 1
    batching.default_queue_policy.timeout_action = oip.ModelQueuePolicy.REJECT
    batching.default_queue_policy.allow_timeout_override = True
    config.instance_group.extend(_instance_groups(facts.provider, facts.devices))
    parameters = {
        "digest": facts.digest,
        "results_digest": facts.results_digest,
        "precision": pb.Precision.Name(facts.precision).removeprefix("PRECISION_").lower(),
        "max_tokens": str(facts.manifest.max_tokens),
        "max_text_tokens": str(facts.manifest.max_text_tokens),
    }
    for name, value in parameters.items():
        config.parameters[name].string_value = value
    return config


def model_statistics(served: ServedModel, totals: Totals) -> oip.ModelStatistics:
    """Describe the requests and the batches of a model since it was loaded."""
    stages = totals.stages
    durations = {
        name: _duration(Total(totals.succeeded.count, sum(stages[stage].seconds for stage in parts if stage in stages)))
        for name, parts in _DURATIONS.items()
    }
    reply = oip.ModelStatistics(
        name=served.name,
        version=served.version,
        last_inference=round(totals.latest_unix_s * _MS_PER_S),
        inference_count=totals.sequences,
        execution_count=totals.batch_count,
        inference_stats=oip.InferStatistics(
            success=_duration(totals.succeeded),
            fail=_duration(totals.failed),
            cache_hit=oip.StatisticDuration(),
            cache_miss=oip.StatisticDuration(),
            **durations,
        ),
    )
    for size, batches in sorted(totals.batches.items()):
        compute_input, compute_infer = _duration(batches.packing), _duration(batches.runs)
        reply.batch_stats.add(batch_size=size, compute_input=compute_input, compute_infer=compute_infer)
    return reply


def repository_index(versions: Iterable[VersionStatus], *, ready_only: bool) -> oip.RepositoryIndexResponse:
    """List versions of models."""
    reply = oip.RepositoryIndexResponse()
    for each in versions:
        if each.state is ModelState.READY or not ready_only:
            reply.models.add(name=each.name, version=each.version, state=_STATES[each.state], reason=each.reason)
    return reply


def _inputs(manifest: Manifest) -> list[_Tensor]:
    """Return the name, the type and the shape, without sequences, of each input that the model takes."""
    inputs: list[_Tensor] = []
    if manifest.max_text_tokens:
        inputs.append(("text", "BYTES", [1]))
    if manifest.takes_pairs:
        inputs.append(("text_pair", "BYTES", [1]))
    if manifest.vocabulary_size:
        inputs.append(("input_ids", "INT64", [_ANY]))
    if manifest.feature_width:
        inputs.append(("features", "FP32", [_ANY, manifest.feature_width]))
    if manifest.token_types > 1:
        inputs.append(("token_type_ids", "INT64", [_ANY]))
    return [*inputs, ("attention_mask", "INT64", [_ANY])]


def _outputs(manifest: Manifest) -> list[_Tensor]:
    """Return the name, the type and the shape, without sequences, of each output; the default output is the first."""
    outputs: list[_Tensor] = []
    if manifest.pooling != pb.POOLING_NONE:
        outputs.append(("pooled", "FP32", [manifest.width]))
    if SCORES.has(manifest):
        labels = len(manifest.head.labels)
        scores = ("scores", "FP32", [_ANY, labels] if manifest.head.per_token else [labels])
        outputs.insert(0 if SCORES.suits(manifest) else 1, scores)
    if ROWS.has(manifest):
        outputs.append(("hidden", "FP32", [_ANY, hidden_width(manifest)]))
    return [*outputs, ("token_count", "INT32", [])]


def _instance_groups(provider: str, devices: Sequence[int]) -> list[oip.ModelInstanceGroup]:
    if provider == "cpu":
        return [oip.ModelInstanceGroup(name="cpu", kind=oip.ModelInstanceGroup.KIND_CPU, count=len(devices))]
    return [
        oip.ModelInstanceGroup(
            name=f"gpu{device}", kind=oip.ModelInstanceGroup.KIND_GPU, count=devices.count(device), gpus=[device]
        )
        for device in sorted(set(devices))
    ]


def _duration(total: Total) -> oip.StatisticDuration:
    return oip.StatisticDuration(count=total.count, ns=round(total.seconds * _NS_PER_S))
