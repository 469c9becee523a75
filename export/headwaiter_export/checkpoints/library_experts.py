"""Mixtures of experts of transformers, in a form that a graph can hold."""

from typing import Any

import torch
from torch import Tensor, nn

from headwaiter_export.config.field_checks import ConfigError

_ROWS = 7
_TOLERANCE = 1e-5


def run_all_experts(module: nn.Module) -> int:
    """Let each mixture of experts in a module run all its experts for each row, and return the number of mixtures.

    The forms of transformers group the rows by expert, which depends on the values, or copy weights for each row. All
    experts together are one product, which takes longer by the number of experts for each chosen one.

    Raises:
        ConfigError: the results of a mixture differ from those of its own code.
    """
    mixtures: list[tuple[str, Any]] = [each for each in module.named_modules() if hasattr(each[1], "_apply_gate")]
    for name, mixture in mixtures:
        mixture.config._experts_implementation = "eager"  # noqa: SLF001 - no other name sets it
        rows, chosen, weights = _example(mixture)
        expected = mixture(rows, chosen, weights)
        if not torch.allclose(_all_experts(mixture, rows, chosen, weights), expected, _TOLERANCE, _TOLERANCE):
            raise ConfigError(f"{name} is a mixture of experts that the export does not know")
        mixture.forward = _all_experts.__get__(mixture)
    return len(mixtures)


def _example(mixture: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, the numbers of two experts of each row, which may be the same one, and their weights."""
    down = mixture.down_proj
    width = down.shape[2 if mixture.is_transposed else 1]
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(_ROWS, width, generator=generator)
    weights = torch.rand(_ROWS, 2, generator=generator)
    first = torch.arange(_ROWS) % down.shape[0]
    return rows, torch.stack([first, first // 2], 1), weights


def _all_experts(mixture: Any, rows: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of the results of the chosen experts, as the other forms of transformers.

    Args:
        mixture: the module.
        rows: [R, width].
        chosen: [R, k], the numbers of the experts.
        weights: [R, k].
    """

    def project(inputs: Tensor, name: str) -> Tensor:
        matrices = getattr(mixture, name)
        outputs: Tensor = inputs @ (matrices if mixture.is_transposed else matrices.transpose(1, 2))
        return outputs + getattr(mixture, f"{name}_bias")[:, None] if mixture.has_bias else outputs

    if mixture.has_gate:
        inner = mixture._apply_gate(project(rows[None], "gate_up_proj"))  # noqa: SLF001 - no other name has it
    else:
        inner = mixture.act_fn(project(rows[None], "up_proj"))
    results = project(inner, "down_proj")  # [experts, R, width]
    if mixture.has_post_expert_norm:
        results = mixture.post_expert_norm(results)
    shares = torch.zeros(rows.shape[0], results.shape[0]).scatter_add(1, chosen, weights)
    total: Tensor = (results * shares.T[:, :, None]).sum(0)
    return total
