"""Read checkpoint folders of the families that `families/model_types.py` lists.

A checkpoint is a folder saved by `transformers` (config.json, weights, tokenizer.json), alone or as the first module of
a `sentence-transformers` model (modules.json). Reading has three stages: `files.py` opens the files, `plan.py` decides
what the model takes and computes, with `chosen_family.py` and `outputs.py`, and `encoder_weights.py` reads the weights.
A setting that the encoder cannot reproduce is an error that names the setting.
"""

from dataclasses import dataclass
from pathlib import Path

from headwaiter_export.checkpoints.encoder_weights import read_encoder
from headwaiter_export.checkpoints.files import open_files
from headwaiter_export.checkpoints.library_rows import LibraryRows, rows_of_library
from headwaiter_export.checkpoints.outputs import Choices
from headwaiter_export.checkpoints.plan import plan_model
from headwaiter_export.checkpoints.texts import TextConfig
from headwaiter_export.checkpoints.word_scores import PairQuestion
from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_proto.encoder_pb2 import ImageFormat, SoundFormat
from headwaiter_proto.manifest_pb2 import HubSource


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that is ready for export.

    Attributes:
        encoder: the encoder in float32.
        text: tokenizer, limit and prompts; None if the model accepts no texts.
        image: the images that the model takes; None if the model takes no images.
        sound: the sounds that the model takes; None if the model takes no samples of sounds.
        assumptions: what the export took for granted or left out, one line each.
        source: where the checkpoint came from; None if it did not come from a hub.
        library_rows: computes the encoder's hidden rows with transformers; None if its rows mean something else.
    """

    encoder: Encoder
    text: TextConfig | None
    image: ImageFormat | None = None
    sound: SoundFormat | None = None
    assumptions: tuple[str, ...] = ()
    source: HubSource | None = None
    library_rows: LibraryRows | None = None


def read_checkpoint(
    folder: Path,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    question: PairQuestion | None = None,
    *,
    sparse: bool = False,
    route: str | None = None,
    adapter: str | None = None,
) -> LoadedModel:
    """Read a checkpoint folder.

    Args:
        folder: folder of a `transformers` or `sentence-transformers` model.
        pooling: pooling to use; None for the checkpoint's own, or, if the checkpoint names no pooling, none for a model
            with a head, and the default of the family for an encoder; a language model needs a pooling.
        normalize: whether to scale pooled vectors to unit length; None for the checkpoint's own choice, which is false
            unless modules.json lists Normalize.
        question: how to ask a language model for the score of a pair; None if the checkpoint says how, or is no such
            model.
        sparse: whether pooled vectors are those of SPLADE, also if the checkpoint does not say so.
        route: which route of a `sentence-transformers` model with a Router to read, such as "document".
        adapter: which adapter of a model with adapters of several tasks to merge into its weights, such as
            "retrieval.query"; None for none. If the checkpoint has a prompt of this name and no default prompt, it
            becomes the default prompt.

    Raises:
        NoFamilyError: no family has the model type, or the family lacks the activation; `library_model.py` may read
            the checkpoint.
        CheckpointError: a part is missing, or a setting cannot be reproduced; the message names it.
    """
    files = open_files(folder, route)
    choices = Choices(
        pooling=pooling, normalize=normalize, question=question, sparse=sparse, route=route, adapter=adapter
    )
    plan = plan_model(files, choices)
    encoder, assumptions = read_encoder(plan)
    assumptions = [*plan.assumptions, *assumptions]
    library_rows = rows_of_library(plan, encoder.config)
    return LoadedModel(encoder, plan.text, plan.image, plan.sound, tuple(assumptions), library_rows=library_rows)
