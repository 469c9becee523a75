"""float16: which numbers it cannot hold, and the encoder from which `bundle/export.py` writes graphs in fp16."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from headwaiter_export.encoder.after_pooling import FLOAT32_MODULES
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.own_module import ModuleEncoder
from headwaiter_server.runtime.numeric_tolerances import FLOAT16_MAX


def limiting_magnitude(magnitudes: Mapping[str, float]) -> tuple[str, float]:
    """Return the name and magnitude of the first entry that float16 cannot hold, otherwise of the largest entry."""
    too_large = ((name, magnitude) for name, magnitude in magnitudes.items() if magnitude > FLOAT16_MAX)
    return next(too_large, max(magnitudes.items(), key=lambda entry: entry[1]))


@contextmanager
def in_float16(encoder: Encoder) -> Iterator[Encoder]:
    """Return the encoder in float16 for a `with` block.

    A module of the caller is changed during the block, and no copy is made: a hook may hold the module itself.
    """
    if not isinstance(encoder, ModuleEncoder):
        yield to_float16(encoder)
        return
    named = (*encoder.named_parameters(), *encoder.named_buffers())
    halved = (tensor for name, tensor in named if not name.startswith(FLOAT32_MODULES))
    tensors = {id(each): each for each in halved if each.is_floating_point()}
    before = {key: tensor.data for key, tensor in tensors.items()}
    try:
        for tensor in tensors.values():
            tensor.data = tensor.data.half()
        yield encoder
    finally:
        for key, tensor in tensors.items():
            tensor.data = before[key]


def to_float16(encoder: Encoder) -> Encoder:
    """Return the encoder in float16, with the modules after the layers in float32; they share their weights."""
    tensors = {id(tensor): tensor for tensor in (*encoder.parameters(), *encoder.buffers())}
    in_float32 = {id(each) for name, each in encoder.named_parameters() if name.startswith(FLOAT32_MODULES)}
    for key in tensors.keys() - in_float32:
        if tensors[key].is_floating_point():
            half = tensors[key].detach().half()
            tensors[key] = nn.Parameter(half, False) if isinstance(tensors[key], nn.Parameter) else half
    return copy.deepcopy(encoder, tensors)
