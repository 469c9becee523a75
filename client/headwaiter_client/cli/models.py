"""The subcommand `models`: show the inputs, limits, speed and accuracy of a server's models."""

import argparse
import json
import sys
from typing import Any, get_args

from google.protobuf.json_format import MessageToDict

from headwaiter_client.calls.models import ModelDescription, ModelVersion, Task
from headwaiter_client.calls.steps import LOAD_TIMEOUT_S
from headwaiter_client.cli.console import console
from headwaiter_client.cli.shared_flags import Commands, add_command, client_arguments
from headwaiter_client.client import Client
from headwaiter_proto import encoder_pb2 as pb

# Which sequences share a batch of a graph that pads them.
_BATCHES = {
    pb.ISOLATION_MIXED: "batches hold sequences of all lengths, padded",
    pb.ISOLATION_ONE_LENGTH: "batches hold sequences of one length",
    pb.ISOLATION_ONE_SEQUENCE: "batches hold one sequence",
}
# What the results were compared with, if not with PyTorch alone.
_COMPARED = {
    pb.REFERENCE_SOURCE_ONNX_FILE: "the ONNX file alone, not PyTorch",
    pb.REFERENCE_SOURCE_ONNX_FILE_AND_PYTORCH: "the ONNX file, which the export compared with PyTorch too",
}


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    flags = add_command(commands, "models", run, "show the models of the server")
    flags.add_argument(
        "--json",
        action="store_true",
        help="print the GetModelResponse of each model as JSON, and versions that are not ready on standard error",
    )
    for name, run_command, description in (
        ("load", load, "have the server load the highest version of a model"),
        ("unload", unload, "have the server unload a model"),
    ):
        flags = add_command(commands, name, run_command, description, timeout_s=LOAD_TIMEOUT_S)
        flags.add_argument("name", metavar="NAME", help="name of the model")


def load(arguments: argparse.Namespace) -> int:
    """Load a model, and print the version that answers."""
    with Client(**client_arguments(arguments)) as client:
        model = client.load(arguments.name)
    print(f"{model.name}, version {model.version}: {model.digest[:12]}")
    return 0


def unload(arguments: argparse.Namespace) -> int:
    """Unload a model."""
    with Client(**client_arguments(arguments)) as client:
        client.unload(arguments.name)
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Print one table per model, or all models as JSON; then the versions that are not ready.

    With JSON, these versions are on standard error, because they have no GetModelResponse.
    """
    screen = None if arguments.json else console()
    with Client(**client_arguments(arguments)) as client:
        versions = client.models()
        ready = [each for each in versions if each.state == "ready"]
        models = [client.model(each.name) for each in ready]
    not_ready = []
    for version in versions:
        if version.state != "ready":
            reason = f": {version.reason}" if version.reason else ""
            state = version.state.replace("_", " ")
            history = f" ({_history(version)})" if version.loads else ""
            not_ready.append(f"{version.name}, version {version.version}, is {state}{history}{reason}")
    if screen is None:
        print(json.dumps([_every_field(model.message) for model in models], indent=2))
        for line in not_ready:
            print(line, file=sys.stderr)
        return 0
    from rich.table import Column, Table

    for model, version in zip(models, ready, strict=True):
        table = Table("model", Column(model.model.name, overflow="fold"))
        loads = {"loads": _history(version)} if version.loads else {}
        for name, text in (_model_rows(model) | _server_rows(model) | loads).items():
            table.add_row(name, text)
        screen.print(table)
    for line in not_ready:
        screen.print(line)
    return 0


def _history(version: ModelVersion) -> str:
    """Return how often the server has loaded and unloaded a model."""
    return f"{version.loads} loads in {version.loading_s:.1f} s, {version.evictions} evictions"


def _every_field(model: pb.GetModelResponse) -> dict[str, Any]:
    return MessageToDict(model, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _model_rows(model: ModelDescription) -> dict[str, str]:
    """Return the rows that describe the bundle: identity, inputs and outputs."""
    inputs = {
        f"token ids below {model.vocabulary_size:,}": model.takes_tokens,
        f"features of width {model.feature_width:,}": model.takes_features,
        f"texts of at most {model.max_text_tokens:,} tokens": model.takes_texts,
        "JPEG and PNG files": model.takes_images,
    }
    rows = {
        "version": model.model.version,
        "digest": model.model.digest,
        "results digest": model.model.results_digest,
        "tasks": ", ".join(task for task in get_args(Task) if task in model.tasks),
        "inputs": ", ".join(name for name, accepted in inputs.items() if accepted),
        "images": f"{model.image.channels} × {model.image.height:,} × {model.image.width:,} values, in patches of "
        f"{model.image.patch_size} × {model.image.patch_size}"
        + (f" after {model.prefix_rows} rows of zeros" if model.prefix_rows else "")
        if model.image.patch_size
        else "",
        "sounds": f"{model.sound.sampling_rate_hz:,} samples a second, a row every {model.sound.hop:,} samples"
        + (", scaled to mean 0 and variance 1" if model.sound.normalized else "")
        if model.sound.hop
        else "",
        "targets": _targets(model),
        "sequence limit": f"exactly {model.max_tokens:,} tokens"
        if model.min_tokens == model.max_tokens
        else f"{model.min_tokens:,} to {model.max_tokens:,} tokens",
        "vectors": f"width {model.width:,}, pooling {model.pooling or 'unknown'}"
        + (", of unit length" if model.normalized else "")
        if model.width
        else "",
        "hidden vectors": _hidden_vectors(model),
        "other pooling": ", ".join(pooling for pooling in model.poolings if pooling != model.pooling),
        "prompts": ", ".join(
            f"{prompt.name}{' (default)' if prompt.name == model.default_prompt else ''} {prompt.text!r}"
            for prompt in model.prompts
        ),
        "encoder": f"{model.layers:,} attention layers with {model.heads:,} heads each" if model.layers else "",
        "attention weights": "available (`attend`)" if model.attends else "not available",
    }
    return {name: text for name, text in rows.items() if text}


def _hidden_vectors(model: ModelDescription) -> str:
    """Return the width of hidden vectors, if that of pooled vectors does not say it."""
    if not model.hidden_width:
        return "none"
    return f"width {model.hidden_width:,}" if model.hidden_width != model.width else ""


def _targets(model: ModelDescription) -> str:
    """Return how the rows of a target differ from those of its source; empty for a model without targets."""
    if model.target is None:
        return ""
    if model.takes_tokens:
        return f"begin with token id {model.target.start_id:,}"
    return "have the last value 1 in each row, and sources 0"


def _server_rows(model: ModelDescription) -> dict[str, str]:
    """Return the rows that describe how the server runs the model."""
    execution, limits, check = model.execution, model.limits, model.execution.self_check
    cost = execution.cost
    fallback = f" ({execution.fallback_reason})" if execution.fallback_reason else ""
    rows = {
        "provider": execution.provider + fallback,
        "precision": model.model.precision,
        "request limit": f"{limits.max_sequences:,} sequences, {limits.max_tokens:,} tokens, "
        f"{limits.max_message_bytes:,} bytes",
        "self-check": f"{check.sequences} sequences: "
        f"pooled vectors within {check.pooled_max_abs:.1e} ({check.pooled_max_relative:.1e} of their scale), "
        f"hidden rows within {check.hidden_max_abs:.1e} ({check.hidden_max_relative:.1e} of their scale), "
        f"cosine at least {check.min_cosine:.6f}, {check.mean_cosine:.6f} on average",
    }
    if cost.service_tokens_per_s:
        source = "learnt by the version before" if cost.remembered else "measured at start-up"
        terms = (
            (cost.launch_s * 1e3, "ms per batch"),
            (cost.token_s * 1e6, "µs per token"),
            (cost.padded_row_s * 1e6, "µs per token or padding"),
            (cost.cell_s * 1e9, "ns per attention cell"),
        )
        costs = ", ".join(f"{value:.3g} {unit}" for value, unit in terms if value)
        rows["batches"] = (
            f"at most {execution.token_budget:,} tokens, {cost.service_tokens_per_s:,.0f} tokens/s: "
            f"{costs} ({source}, ±{cost.error_ratio:.1%})"
        )
    if compared := _COMPARED.get(execution.reference_source):
        rows["compared with"] = compared
    if execution.padding_reason:
        rows["padding"] = f"{_BATCHES.get(execution.isolation, 'batches are padded')}: {execution.padding_reason}"
    if execution.longest_sequence_bytes:
        size_mib = execution.longest_sequence_bytes / 2**20
        size = "below 1 MiB" if size_mib < 1 else f"about {size_mib:,.0f} MiB"
        rows["longest sequence"] = f"{size} of memory for {model.max_tokens:,} tokens"
    for graph in model.parity:
        if graph.graph == execution.graph and graph.HasField("same_nearest_neighbour"):
            rows["nearest neighbour"] = f"the same as in fp32 for {graph.same_nearest_neighbour:.1%} of sentences"
        if graph.graph == execution.graph and graph.HasField("same_order"):
            rows["order of scores"] = f"the same as in fp32 for {graph.same_order:.1%} of each two inputs"
    return rows
