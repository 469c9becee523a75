"""The command `models`: what a server holds, what it takes, how it runs, and how far its answers are from PyTorch."""

import argparse
import json
from typing import Any

from google.protobuf.json_format import MessageToDict

from headwaiter_client.calls.results import precision_name
from headwaiter_client.cli.console import console
from headwaiter_client.cli.shared_flags import Commands, add_command, connection
from headwaiter_client.client import Client
from headwaiter_proto import encoder_pb2 as pb


def add_to(commands: Commands) -> None:
    """Adds the command."""
    flags = add_command(commands, "models", run, "describe the models of the server")
    flags.add_argument("--json", action="store_true", help="print each model's GetModelResponse, as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints a table a model, or all of them as JSON."""
    screen = None if arguments.json else console()
    with Client(**connection(arguments)) as client:
        models = [client.model(ref.name) for ref in client.models()]
    if screen is None:
        print(json.dumps([_every_field(model) for model in models], indent=2))
        return 0
    from rich.table import Column, Table

    for model in models:
        table = Table("model", Column(model.model.name, overflow="fold"))
        for name, text in (_contract(model) | _operation(model)).items():
            table.add_row(name, text)
        screen.print(table)
    return 0


def _every_field(model: pb.GetModelResponse) -> dict[str, Any]:
    return MessageToDict(model, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _contract(model: pb.GetModelResponse) -> dict[str, str]:
    """Says what the model is and takes, which is the bundle's."""
    inputs = {
        f"token ids below {model.vocabulary_size:,}": model.takes_tokens,
        f"features of width {model.feature_width:,}": model.takes_features,
        f"texts of {model.max_text_tokens:,} tokens at most": model.takes_texts,
    }
    rows = {
        "digest": model.model.digest,
        "inputs": ", ".join(name for name, taken in inputs.items() if taken),
        "sequence limit": f"{model.min_tokens:,} to {model.max_tokens:,} tokens",
        "vectors": f"width {model.width:,}, pooling {_pooling(model.pooling)}"
        + (", of unit length" if model.normalized else ""),
        "other pooling": ", ".join(_pooling(one) for one in model.poolings if one != model.pooling),
        "prompts": ", ".join(
            f"{one.name}{' (the default)' if one.name == model.default_prompt else ''} {one.text!r}"
            for one in model.prompts
        ),
        "encoder": f"{model.layers:,} layers of {model.heads:,} heads",
        "attention weights": "shown by Attend" if model.attends else "not offered",
    }
    return {name: text for name, text in rows.items() if text}


def _operation(model: pb.GetModelResponse) -> dict[str, str]:
    """Says how the model runs, which is the server's."""
    execution, limits, check = model.execution, model.limits, model.execution.self_check
    cost = execution.cost
    fallback = f" ({execution.fallback_reason})" if execution.fallback_reason else ""
    rows = {
        "provider": execution.provider + fallback,
        "precision": precision_name(execution.precision),
        "request limit": f"{limits.max_sequences:,} sequences, {limits.max_tokens:,} tokens, "
        f"{limits.max_message_bytes:,} bytes",
        "self-check": f"{check.sequences} sequences: "
        f"pooled within {check.pooled_max_abs:.1e} ({check.pooled_max_relative:.1e} of the scale), "
        f"hidden within {check.hidden_max_abs:.1e} ({check.hidden_max_relative:.1e} of the scale), "
        f"cosine {check.min_cosine:.6f} or more, {check.mean_cosine:.6f} on average",
    }
    if cost.service_tokens_per_s:
        source = "remembered" if cost.remembered else "measured"
        rows["batches"] = (
            f"{execution.token_budget:,} tokens at most, {cost.service_tokens_per_s:,.0f} tokens/s: "
            f"{cost.launch_s * 1e3:.3g} ms, {cost.token_s * 1e6:.3g} µs a token, {cost.cell_s * 1e9:.3g} ns a cell "
            f"({source}, ±{cost.error_ratio:.1%})"
        )
    for graph in model.parity:
        if graph.graph == execution.graph and graph.HasField("same_nearest_neighbour"):
            rows["nearest neighbour"] = f"the one that fp32 finds, for {graph.same_nearest_neighbour:.1%} of sentences"
    return rows


def _pooling(pooling: pb.Pooling) -> str:
    return pb.Pooling.Name(pooling).removeprefix("POOLING_").lower()
