"""Describe running models: where they run, what their batches cost, differences from PyTorch, latest batches."""

from collections.abc import Iterable

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.models.running_model import RunningModel
from headwaiter_server.scheduling.batch_result import MAX_BATCHES, RecentBatch

# The most sequences of all batches in a reply together: writing more would delay other requests.
_MAX_SEQUENCES = 8192


def description(running: RunningModel, requested_provider: str) -> pb.GetModelResponse:
    """Return `parity` and `execution` of the answer to GetModel; the other fields are empty."""
    model, calibration, limits = running.model, running.calibration, running.queue.limits.current
    cost, padding = calibration.cost, model.bundle.manifest.padding
    return pb.GetModelResponse(
        parity=model.parity.graphs,
        execution=pb.Execution(
            provider=model.provider,
            requested_provider=requested_provider,
            fallback_reason=model.fallback_reason,
            precision=model.precision,
            graph=model.graph_file,
            token_budget=limits.tokens,
            cell_budget=limits.cells,
            longest_sequence_bytes=model.longest_sequence_bytes,
            isolation=padding.isolation,
            padding_reason=padding.reason,
            reference_source=model.bundle.manifest.reference_source,
            self_check=pb.SelfCheck(sequences=model.self_check_sequences, **model.self_check.published()),
            cost=pb.BatchCost(
                launch_s=cost.launch_s,
                token_s=cost.token_s,
                padded_row_s=cost.padded_s,
                cell_s=cost.cell_s,
                variable_length=cost.variable_length,
                error_ratio=calibration.error_ratio,
                service_tokens_per_s=calibration.service_tokens_per_s,
                remembered=calibration.remembered,
                hidden_row_s=cost.hidden_row_s,
            ),
        ),
    )


def batches_reply(models: Iterable[RunningModel], now_s: float) -> pb.ListBatchesResponse:
    """Return the latest batches of models, the newest last; `now_s` is on the scheduler's clock."""
    batches = [(batch.end_s, batch, served) for served in models for batch in served.queue.recent_batches]
    batches.sort(key=lambda each: each[0], reverse=True)
    sequences = 0
    listed: list[tuple[RecentBatch, RunningModel]] = []
    for _, batch, served in batches[:MAX_BATCHES]:
        sequences += len(batch.lengths)
        if listed and sequences > _MAX_SEQUENCES:
            break
        listed.append((batch, served))
    # The numbers of requests in this process would tell how many requests it has answered.
    numbers: dict[int, int] = {}
    reply = pb.ListBatchesResponse()
    for batch, served in reversed(listed):
        reply.batches.add(
            model=served.name,
            version=served.version,
            lengths=batch.lengths,
            requests=[numbers.setdefault(number, len(numbers)) for number in batch.request_numbers],
            ended_s_ago=max(0.0, now_s - batch.end_s),
            predicted_s=batch.predicted_s,
            measured_s=batch.measured_s,
        )
    return reply
