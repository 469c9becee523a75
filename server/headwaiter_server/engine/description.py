"""Describe a running model: where it runs, what its batches cost, and its difference from PyTorch."""

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.models.running_model import RunningModel


def description(running: RunningModel, requested_provider: str) -> pb.GetModelResponse:
    """Return `parity` and `execution` of the answer to GetModel; the other fields are empty."""
    model, calibration, limits = running.model, running.calibration, running.queue.limits.current
    cost = calibration.cost
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
