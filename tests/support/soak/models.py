"""The tiny bundles that the long runs serve."""

from pathlib import Path

from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.cli import main
from tests.support.checkpoints import feature_encoder, save_bert, save_sentence_transformer, save_tokenizer


def export_text_model(folder: Path) -> Path:
    """Export a model of random weights for texts of at most 32 tokens and sequences of at most 64 token ids."""
    checkpoint, bundle = folder / "checkpoint", folder / "tiny-text"
    checkpoint.mkdir()
    save_bert(checkpoint)
    save_tokenizer(checkpoint)
    save_sentence_transformer(checkpoint)
    if main(["checkpoint", str(checkpoint), "-o", str(bundle), "--name", bundle.name]):
        raise RuntimeError("the export failed: its messages are above")
    return bundle


def export_feature_model(folder: Path) -> Path:
    """Export a model of random weights for sequences of at most 48 feature vectors of width 6."""
    bundle = folder / "tiny-features"
    export_bundle(feature_encoder(), None, bundle, bundle.name)
    return bundle
