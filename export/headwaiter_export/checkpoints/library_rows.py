"""Compute the hidden rows of a family's checkpoint with transformers, the library that knows how it was trained."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray

from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.library_model import load_module
from headwaiter_export.checkpoints.plan import ModelPlan
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.encoder.own_module import call_module
from headwaiter_export.encoder.reference import Sequence

# Computes the hidden rows [n, width] of each sequence; returns none if transformers cannot read the checkpoint.
LibraryRows: TypeAlias = Callable[[Iterable[Sequence]], list[NDArray[Any]]]


def rows_of_library(plan: ModelPlan, config: EncoderConfig) -> LibraryRows | None:
    """Return a function that computes hidden rows with transformers; None if its rows mean something else."""
    changes_rows = config.decoder is not None or bool(config.row_modules) or plan.adapter is not None
    if not config.takes_tokens or changes_rows:
        return None

    @torch.inference_mode()
    def rows(sequences: Iterable[Sequence]) -> list[NDArray[Any]]:
        try:
            module = load_module(plan.folder, plan.config_json, encoder_only=True)
            return [_rows(module, each) for each in sequences]
        except (CheckpointError, ConfigError):
            return []

    return rows


def _rows(module: Any, sequence: Sequence) -> NDArray[Any]:
    """Return the hidden rows of one sequence of token ids [n], or of token ids and token types [n, 2]."""
    ids, *types = torch.from_numpy(sequence.reshape(len(sequence), -1)).long().T[:, None]
    rows: NDArray[Any] = call_module(module, ids, torch.ones_like(ids), *types, names_mask=True)[0].numpy()
    return rows
