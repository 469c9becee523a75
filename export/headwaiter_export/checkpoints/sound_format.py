"""Read the sounds that a checkpoint takes, from the settings of its feature extractor."""

from pathlib import Path

from headwaiter_export.checkpoints.json_files import CheckpointJson
from headwaiter_export.checkpoints.processor_files import read_processor
from headwaiter_export.config.waveform import WaveformConfig
from headwaiter_proto.encoder_pb2 import SoundFormat

_EXTRACTOR = "Wav2Vec2FeatureExtractor"
# The values of fields that the file may leave out.
_DEFAULTS = {"sampling_rate": 16_000, "do_normalize": True, "feature_extractor_type": _EXTRACTOR, "feature_size": 1}


def read_sound_format(folder: Path, waveform: WaveformConfig) -> SoundFormat:
    """Read the sounds that a checkpoint takes.

    Without a file, the settings of the feature extractor are the defaults of `transformers`.

    Raises:
        CheckpointError: a field is wrong, or has a value that the client cannot apply.
    """
    saved = read_processor(folder, "feature_extractor", "audio_processor")
    extractor = CheckpointJson(saved.path, {**_DEFAULTS, **saved.values})
    extractor.require({name: _DEFAULTS[name] for name in ("feature_extractor_type", "feature_size")})
    return SoundFormat(
        sampling_rate_hz=extractor.size("sampling_rate"),
        hop=waveform.hop,
        normalized=extractor.is_true("do_normalize"),
    )
