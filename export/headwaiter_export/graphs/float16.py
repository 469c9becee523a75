"""float16: which numbers it cannot hold, and the encoder from which `bundle/export.py` writes graphs in fp16."""

import copy
from collections.abc import Mapping

from torch import nn

from headwaiter_export.encoder.after_pooling import FLOAT32_MODULES
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_server.runtime.numeric_tolerances import FLOAT16_MAX


def limiting_magnitude(magnitudes: Mapping[str, float]) -> tuple[str, float]:
    """Return the name and magnitude of the first entry that float16 cannot hold, otherwise of the largest entry."""
    too_large = ((name, magnitude) for name, magnitude in magnitudes.items() if magnitude > FLOAT16_MAX)
    return next(too_large, max(magnitudes.items(), key=lambda entry: entry[1]))


def to_float16(encoder: Encoder) -> Encoder:
    """Return the encoder in float16, with the modules after the layers in float32; they share their weights."""
    tensors = {id(tensor): tensor for tensor in (*encoder.parameters(), *encoder.buffers())}
    in_float32 = {id(each) for name, each in encoder.named_parameters() if name.startswith(FLOAT32_MODULES)}
    for key in tensors.keys() - in_float32:
        if tensors[key].is_floating_point():
            half = tensors[key].detach().half()
            tensors[key] = nn.Parameter(half, False) if isinstance(tensors[key], nn.Parameter) else half
    return copy.deepcopy(encoder, tensors)
