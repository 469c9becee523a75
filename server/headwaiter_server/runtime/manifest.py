"""Check what a manifest says about itself; other modules compare it with the files of the bundle."""

from collections.abc import Iterator

from headwaiter_proto.encoder_pb2 import POOLING_MAX, POOLING_NONE
from headwaiter_proto.manifest_pb2 import LOWERING_PADDED, Graph, Manifest
from headwaiter_proto.rules.images import min_tokens
from headwaiter_proto.rules.pooling import POOLINGS, POOLINGS_OF_GRAPHS
from headwaiter_server.runtime.errors import BundleRefused

# The name appears in replies, metric labels and log lines.
MAX_NAME_CHARACTERS = 128


def is_model_name(name: str) -> bool:
    """Return whether a model may have this name: 1 to 128 printable characters, not only spaces."""
    return bool(name.strip()) and name.isprintable() and len(name) <= MAX_NAME_CHARACTERS


def graphs_of(manifest: Manifest) -> list[Graph]:
    """Return the graphs of the bundle, with the graph behind Attend."""
    return [*manifest.graphs, *([manifest.attend] if manifest.HasField("attend") else [])]


def check_manifest(manifest: Manifest) -> None:
    """Check the fields of a manifest against each other.

    Raises:
        BundleRefused: the message begins with what is wrong in the manifest, and does not name its file.
    """
    for problem in _contradictions(manifest):
        raise BundleRefused(problem)


def _contradictions(manifest: Manifest) -> Iterator[str]:
    name, ids, tokens, text_tokens = (
        manifest.name,
        manifest.vocabulary_size,
        manifest.max_tokens,
        manifest.max_text_tokens,
    )
    if not is_model_name(name):
        yield (
            f"has name {name[:40]!r} of {len(name):,} characters, and 1 to {MAX_NAME_CHARACTERS} printable characters "
            "are allowed"
        )
    if bool(ids) == bool(manifest.feature_width):
        yield f"has vocabulary_size {ids} and feature_width {manifest.feature_width}, and exactly one must be above 0"
    needed = ["max_tokens"]
    if not (manifest.without_rows and manifest.pooling == POOLING_NONE):
        needed.append("width")
    if not manifest.HasField("padding"):
        needed += ["layers", "heads"]
    for field in needed:
        if not getattr(manifest, field):
            yield f"has {field} 0"
    if any(graph.lowering == LOWERING_PADDED for graph in manifest.graphs) != manifest.HasField("padding"):
        yield "has padding without padded graphs, or padded graphs without padding"
    if manifest.HasField("padding") and not (manifest.padding.isolation and manifest.padding.token_values):
        yield "has padding without isolation or token_values"
    if manifest.without_rows:
        if manifest.pooling == POOLING_NONE and not manifest.HasField("head"):
            yield "has without_rows without a pooling or a head"
        if manifest.pooling not in (*POOLINGS_OF_GRAPHS, POOLING_NONE) or manifest.pooling_skips_prompt:
            yield "has without_rows with a pooling of rows"
    if text_tokens > tokens or min_tokens(manifest) > tokens:
        yield (
            f"has max_text_tokens {text_tokens:,} and min_tokens {manifest.min_tokens:,}, and both are at most "
            f"max_tokens {tokens:,}"
        )
    if manifest.pooling not in (*POOLINGS, *POOLINGS_OF_GRAPHS, POOLING_NONE):
        yield f"has the pooling {manifest.pooling}, which this server does not know"
    if manifest.HasField("head") and not manifest.head.function:
        yield "has a head with a function that this server does not know"
    if manifest.sparse and not (manifest.pooling == POOLING_MAX and manifest.fixed_pooling and manifest.width == ids):
        yield "has sparse without vectors of vocabulary_size numbers from the fixed pooling MAX"
    # Only models with a head were trained on pairs; most tokenizers have a template for pairs.
    if manifest.takes_pairs and not (text_tokens and manifest.HasField("head")):
        yield "has takes_pairs without max_text_tokens or without a head"
    if manifest.default_prompt and manifest.default_prompt not in [prompt.name for prompt in manifest.prompts]:
        yield f"has default_prompt {manifest.default_prompt[:40]!r}, which is not among its prompts"
    for prompt in manifest.prompts:
        if max(prompt.max_tokens, prompt.expanded_tokens) > text_tokens or prompt.expansion_id >= max(1, ids):
            yield (
                f"has the prompt {prompt.name[:40]!r} with max_tokens {prompt.max_tokens:,}, expanded_tokens "
                f"{prompt.expanded_tokens:,} and expansion_id {prompt.expansion_id}, and max_text_tokens "
                f"{text_tokens:,} and vocabulary_size {ids:,}"
            )
