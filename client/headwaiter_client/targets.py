"""Join a source and a target to one sequence, for a model with an encoder and a decoder."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headwaiter_client.calls.models import ModelDescription
from headwaiter_client.errors import InvalidInput


def source_and_target(source: ArrayLike, target: ArrayLike, model: ModelDescription) -> NDArray[np.generic]:
    """Return one sequence for `encode_tokens` or `encode_features`, whose hidden rows in the reply are the target's.

    Args:
        source: token ids [n], or features [n, width].
        target: token ids [m], the first of which is `model.target.start_id`, or features [m, width].
        model: the result of `client.model()`.

    Returns:
        Token ids [n + m], or float32 features [n + m, width + 1] whose last value is 0 for the rows of the source and 1
        for those of the target.

    Raises:
        InvalidInput: the model has no targets; a part is empty or no array; or the token ids lack `start_id` in its
            place.
    """
    if model.target is None:
        raise InvalidInput(f"{model.model.name} has no targets: call a model whose `target` is not None")
    rank, numbers = (1, "token ids [n]") if model.takes_tokens else (2, "features [n, width]")
    parts = []
    for name, part in (("source", source), ("target", target)):
        try:
            rows = np.asarray(part)
        # PyTorch raises TypeError for tensors on a GPU, and RuntimeError for tensors with a gradient.
        except (ValueError, TypeError, RuntimeError) as error:
            raise InvalidInput(f"the {name} is not an array ({error}): pass {numbers}") from error
        if rows.ndim != rank or not len(rows):
            raise InvalidInput(f"the {name} has the shape {list(rows.shape)}: pass {numbers} of at least one row")
        parts.append(rows)
    if model.takes_tokens:
        start_id = model.target.start_id
        if parts[1][0] != start_id or start_id in parts[0]:
            raise InvalidInput(
                f"the first token of the target must have the id {start_id}, which no token of the source may have"
            )
        return np.concatenate(parts)
    try:
        rows = np.concatenate(parts)
    except ValueError as error:
        raise InvalidInput(f"the source and the target have different widths ({error})") from error
    is_target = np.arange(len(rows)) >= len(parts[0])
    return np.column_stack([rows, is_target]).astype(np.float32)
