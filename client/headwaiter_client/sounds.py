"""Turn the samples of a sound into the features of a model such as wav2vec 2.0."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headwaiter_client.calls.models import ModelDescription
from headwaiter_proto.rules.errors import InvalidInput

# Keeps the scale of a sound of zeros finite; the number of `transformers`.
_EPS = 1e-7


def sound_rows(samples: ArrayLike, model: ModelDescription) -> NDArray[np.float32]:
    """Return the rows of one sound for `encode_features` and `classify`: windows of samples, which overlap.

    Args:
        samples: [n] numbers of one channel, `model.sound.sampling_rate_hz` in a second. For integers of 16 bits, pass
            `samples / 32768`.
        model: the result of `client.model()`.

    Returns:
        Float32 [rows, model.feature_width]. Samples behind the last complete row are left out.

    Raises:
        InvalidInput: the model takes no sounds; or the samples have several channels, are no finite numbers, are
            masked, or are fewer than a row has.
    """
    sound, width = model.sound, model.feature_width
    if not sound.hop:
        raise InvalidInput(f"{model.model.name} takes no samples of sounds: call a model whose `sound.hop` is above 0")
    if np.ma.is_masked(samples):
        raise InvalidInput("some samples are masked: pass samples.compressed() or samples.filled(0)")
    try:
        values = np.asarray(samples)
    # PyTorch raises TypeError for tensors on a GPU, and RuntimeError for tensors with a gradient.
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidInput(f"the samples are not an array ({error}): pass [n] samples of one channel") from error
    if values.ndim != 1 or len(values) < width:
        raise InvalidInput(
            f"the samples have the shape {list(values.shape)}: pass [n] samples of one channel, at least {width}"
        )
    if values.dtype.kind not in "fiu":
        raise InvalidInput(f"the samples are {values.dtype} values: pass real numbers")
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    if not np.isfinite(values).all():
        raise InvalidInput(f"sample {int(np.isfinite(values).argmin())} is not a finite float32 number")
    if sound.normalized:
        values = (values - values.mean()) / np.sqrt(values.var() + _EPS)
    return np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(values, width)[:: sound.hop])
