"""The digest of what decides a model's results: two bundles with the same digest give vectors that can be compared.

The digest of the bundle changes with every export by other versions of the tools. This digest does not, so it covers
neither the manifest's versions nor the graph files: a new version of a tool writes the same computation in other nodes.
PyTorch's answers to the golden inputs stand for the computation instead. They are rounded, because processors and
versions of PyTorch round differently.
"""

import hashlib
import json
from collections.abc import Sequence

import numpy as np
from google.protobuf import json_format
from numpy.typing import NDArray

from headwaiter_proto.encoder_pb2 import Precision
from headwaiter_proto.manifest_pb2 import Manifest

# The fields of the manifest that decide results besides the weights, the computation and the tokenizer.
DECIDING_FIELDS = frozenset(
    {
        "max_text_tokens",
        "pooling",
        "normalized",
        "prompts",
        "default_prompt",
        "pooling_skips_prompt",
        "fixed_pooling",
        "image",
        "sound",
        "target",
        "head",
        "pair_template",
        "first_text_keeps_more",
        "sparse",
        "unweighted_ids",
    }
)
# Rounding errors of up to 1.6e-7 were measured in a cosine between two kinds of processor: with these numbers, one
# digest in 2,000 would change.
_COMPARED_SEQUENCES, _DECIMALS = 16, 2


def deciding_fields(manifest: Manifest) -> str:
    """Return the fields of a manifest that decide results, as JSON."""
    deciding = Manifest()
    deciding.CopyFrom(manifest)
    for field in manifest.DESCRIPTOR.fields:
        if field.name not in DECIDING_FIELDS:
            deciding.ClearField(field.name)
    return json.dumps(json_format.MessageToDict(deciding), sort_keys=True)


def summary(vectors: Sequence[NDArray[np.float32]], logits: Sequence[NDArray[np.float32]] | None) -> str:
    """Return rounded numbers of PyTorch's answers: two computations with the same weights differ in them.

    Args:
        vectors: a vector of each golden input, of one or several kinds.
        logits: the logits of each golden input; None for a model without a head.
    """
    numbers: list[NDArray[np.float64]] = []
    for kind in vectors:
        compared = kind[:_COMPARED_SEQUENCES].astype(np.float64)
        compared /= np.maximum(np.linalg.norm(compared, axis=1, keepdims=True), 1e-30)
        numbers.append((compared[:-1] * compared[1:]).sum(axis=1))
    if logits:
        first = np.array([each.flat[0] for each in logits[:_COMPARED_SEQUENCES]], np.float64)
        numbers.append(first / max(np.abs(first).max(), 1e-30))
    # −0.0 is another text than 0.0.
    return json.dumps([(each.round(_DECIMALS) + 0.0).tolist() for each in numbers])


def results_digest(precision: Precision, weights_sha256: str, tokenizer_sha256: str, fields: str, answers: str) -> str:
    """Return the digest of a precision, in hexadecimal; all graphs of a precision have the same weights.

    Args:
        precision: the precision of the graph that answers.
        weights_sha256: checksum of the weights of this precision.
        tokenizer_sha256: checksum of the tokenizer; empty for a model that takes no texts.
        fields: of `deciding_fields`.
        answers: of `summary`.
    """
    decides = [Precision.Name(precision), weights_sha256, tokenizer_sha256, fields, answers]
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()
