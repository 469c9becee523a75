"""Join a source and a target to one sequence, for a model with an encoder and a decoder."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headwaiter_client.calls.input_kinds import FeatureInput, TokenInput
from headwaiter_client.calls.models import ModelDescription
from headwaiter_proto.rules.errors import InvalidInput


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
        InvalidInput: the model has no targets; a part is empty or has other values; or the token ids lack `start_id` in
            its place. In the message, sequence 0 is the source and sequence 1 the target.
    """
    if model.target is None:
        raise InvalidInput(f"{model.model.name} has no targets: call a model whose `target` is not None")
    kind = TokenInput() if model.takes_tokens else FeatureInput()
    first, second = kind.convert(0, source), kind.convert(1, target)
    for name, rows in (("source", first), ("target", second)):
        if not len(rows):
            raise InvalidInput(f"the {name} is empty: pass at least one row")
    if model.takes_tokens:
        start_id = model.target.start_id
        if second[0] != start_id or start_id in first:
            raise InvalidInput(
                f"the first token of the target must have the id {start_id}, which no token of the source may have"
            )
        return np.concatenate([first, second])
    width = model.feature_width - 1
    if first.shape[1] != width:
        raise InvalidInput(
            f"the rows have {first.shape[1]} values: pass rows of {width}, without the value that names the part"
        )
    is_target = np.arange(len(first) + len(second)) >= len(first)
    return np.column_stack([np.concatenate([first, second]), is_target]).astype(np.float32)
