"""A PyTorch module whose forward was changed is refused, or the encoder gives the same rows: never other rows."""

import copy
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from headwaiter_export.encoder.from_torch import ConversionError, from_multihead_attention, from_transformer_encoder
from tests.export.encoder.test_from_torch import assert_equal_results, attention, forward_of, transformer

Change = Callable[[Any], object]


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


class OtherLayer(nn.TransformerEncoderLayer):
    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        rows: Tensor = 2 * super().forward(*inputs, **options)
        return rows


class Wrapped(nn.Module):
    """A linear layer with a second term, as LoRA adds one."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.weight, self.bias = base, base.weight, base.bias
        self.in_features, self.out_features = base.in_features, base.out_features

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.base(x) + 0.1
        return rows


def own_forward(part: nn.Module) -> None:
    """Give an instance a forward of its own."""
    forward = part.forward
    part.forward = types.MethodType(lambda self, *inputs, **options: 2 * forward(*inputs, **options), part)


def prune_for_good(module: Any) -> None:
    pruned = prune.l1_unstructured(module.layers[0].linear1, "weight", 0.5)  # type: ignore[no-untyped-call]
    prune.remove(pruned, "weight")  # type: ignore[no-untyped-call]


def replace_part(name: str, make: Callable[[Any], nn.Module]) -> Change:
    return lambda module: module.set_submodule(name, make(module.get_submodule(name)))


def clamped(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Change a call only for rows that are larger than those that the conversion compares."""
    return lambda *inputs, **options: call(*inputs, **options).clamp(-20, 20)


def change_activations(module: Any) -> None:
    for layer in module.layers:
        layer.activation = F.silu


def for_many_rows(call: Callable[[Tensor], Tensor], change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Change a call only for more rows than the conversion compares."""
    return lambda x: change(call(x)) if x.shape[-2] > 64 else call(x)


REFUSED: dict[str, Change] = {
    "hook on linear1": lambda m: m.layers[0].linear1.register_forward_hook(lambda *a: 2 * a[2]),
    "hook before linear1": lambda m: m.layers[0].linear1.register_forward_pre_hook(lambda _, x: (2 * x[0],)),
    "hook on a layer": lambda m: m.layers[1].register_forward_hook(lambda *a: 2 * a[2]),
    "hook on attention": lambda m: m.layers[0].self_attn.register_forward_hook(lambda *a: (2 * a[2][0], None)),
    "hook on dropout": lambda m: m.layers[0].dropout1.register_forward_hook(lambda *a: 2 * a[2]),
    "hook on the whole": lambda m: m.register_forward_hook(lambda *a: 2 * a[2]),
    "own forward of linear2": lambda m: own_forward(m.layers[0].linear2),
    "own forward of a layer": lambda m: own_forward(m.layers[0]),
    "own forward of the whole": own_forward,
    "own method of a layer": lambda m: setattr(m.layers[0], "_ff_block", lambda x: 2 * x),
    "own method for long sequences": lambda m: setattr(
        m.layers[0], "_ff_block", for_many_rows(m.layers[0]._ff_block, lambda rows: 2 * rows)
    ),
    "own call of a layer": lambda m: setattr(m.layers[0], "_call_impl", clamped(m.layers[0]._call_impl)),
    "a compiled call of a layer": lambda m: setattr(
        m.layers[0], "_compiled_call_impl", clamped(m.layers[0]._call_impl)
    ),
    "an activation after the constructor": change_activations,
    "a dropout that clamps": replace_part("layers.0.dropout1", lambda _: nn.Hardtanh(-20, 20)),
    "old weight_norm": lambda m: nn.utils.weight_norm(m.layers[0].linear1),
    "weight_norm": lambda m: parametrizations.weight_norm(m.layers[0].linear1),
    "old spectral_norm": lambda m: nn.utils.spectral_norm(m.layers[0].linear1),
    "spectral_norm": lambda m: parametrizations.spectral_norm(m.layers[0].linear1),
    "parametrized attention": lambda m: parametrize.register_parametrization(
        m.layers[0].self_attn, "in_proj_weight", Doubled()
    ),
    "prune": lambda m: prune.l1_unstructured(m.layers[0].linear1, "weight", 0.5),  # type: ignore[no-untyped-call]
    "a wrapper around linear1": replace_part("layers.0.linear1", Wrapped),
    "a replaced dropout": replace_part("layers.0.dropout1", lambda _: Doubled()),
    "a replaced norm": replace_part("layers.0.norm1", lambda _: nn.RMSNorm(24)),
    "a subclass of a layer": lambda m: setattr(m.layers[0], "__class__", OtherLayer),
    "another activation": lambda m: setattr(m.layers[0], "activation", lambda x: F.relu(x) ** 2),
    "int8 weights": replace_part("layers.0.linear1", lambda _: nn.Bilinear(24, 24, 40)),
}
EQUAL: dict[str, Change] = {
    "training mode": lambda m: m.train(),
    "a high dropout": lambda m: setattr(m.layers[0].dropout1, "p", 0.9),
    "frozen weights": lambda m: m.requires_grad_(False),
    "float64": lambda m: m.double(),
    "the same layer twice": lambda m: m.layers.__setitem__(1, m.layers[0]),
    "pruned for good": prune_for_good,
    "weight_norm removed": lambda m: nn.utils.remove_weight_norm(nn.utils.weight_norm(m.layers[0].linear1)),
    "a submodule that nothing calls": lambda m: m.add_module("extra", nn.Linear(2, 2)),
    "a hook after gradients": lambda m: m.layers[0].register_full_backward_hook(lambda *_: None),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # weight_norm is old
@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_a_changed_forward_is_refused(change: Change) -> None:
    module = transformer()
    change(module)
    with pytest.raises(ConversionError):
        from_transformer_encoder(module, max_tokens=48)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("change", EQUAL.values(), ids=EQUAL)
def test_a_change_that_eval_mode_does_not_see_is_exported_as_it_is(change: Change) -> None:
    module = transformer()
    change(module)
    modes = [part.training for part in module.modules()]
    encoder = from_transformer_encoder(module, max_tokens=48)
    assert [part.training for part in module.modules()] == modes
    assert_equal_results(encoder, forward_of(copy.deepcopy(module).eval()))


def test_hooks_of_attention_alone_and_of_all_modules_are_refused() -> None:
    module = attention()
    handle = nn.modules.module.register_module_forward_hook(lambda *a: None)
    try:
        with pytest.raises(ConversionError, match="global"):
            from_multihead_attention(module, max_tokens=48)
    finally:
        handle.remove()
    own_forward(module)
    with pytest.raises(ConversionError, match="forward of its own"):
        from_multihead_attention(module, max_tokens=48)


def test_a_patched_class_is_noticed_by_running_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = transformer()
    original = nn.TransformerEncoderLayer._ff_block
    monkeypatch.setattr(nn.TransformerEncoderLayer, "_ff_block", lambda self, x: 1.01 * original(self, x))
    with pytest.raises(ConversionError, match="differs by"):
        from_transformer_encoder(module, max_tokens=48)


def test_the_fast_path_is_as_before() -> None:
    assert torch.backends.mha.get_fastpath_enabled()
    from_transformer_encoder(transformer(1, activation=nn.GELU("tanh")), max_tokens=8)
    assert torch.backends.mha.get_fastpath_enabled()
