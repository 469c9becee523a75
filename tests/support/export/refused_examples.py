"""Tiny checkpoints that the export refuses, one of each kind in docs/reference/supported-models.md, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.checkpoints import save_bert, write_modules_json
from tests.support.export.family_checkpoints import save_family


@dataclass(frozen=True)
class Refused:
    """A kind of checkpoint.

    Attributes:
        label: the kind, for people.
        known: a checkpoint of the kind on the Hugging Face hub, or a class that saves such checkpoints.
        why: why the export refuses it.
        name: name of the classes of `transformers`, without "Config" and `kind`.
        fact: what the message of the export contains; empty for `model_type` of the configuration.
        kind: end of the name of the model class.
        settings: fields of the configuration, besides the usual sizes.
        modules: modules of sentence-transformers around a BERT, in place of the fields from `name` on.
    """

    label: str
    known: str
    why: str
    name: str = ""
    fact: str = ""
    kind: str = "Model"
    settings: Mapping[str, Any] = field(default_factory=dict)
    modules: tuple[str, ...] = ()

    def save(self, folder: Path) -> str:
        """Save a tiny checkpoint, and return what the message of the export contains."""
        if not self.modules:
            model = save_family(folder, self.name, self.kind, **self.settings)
            return self.fact or f"model_type {model.config.model_type!r}"
        save_bert(folder)
        write_modules_json(folder, *self.modules)
        return self.modules[-1]

    @property
    def line(self) -> str:
        """The line of the table."""
        return f"| {self.label} | {self.known} | {self.why} |\n"


REFUSED = (
    Refused(
        "BERT with relative positions",
        "zhiheng-huang/bert-base-uncased-embedding-relative-key",
        "queries are multiplied with vectors of distances in another way than in DeBERTa",
        "Bert",
        "position_embedding_type",
        settings={"position_embedding_type": "relative_key"},
    ),
    Refused("CANINE", "google/canine-s", "it reads characters, and shortens sequences", "Canine"),
    Refused(
        "Longformer",
        "allenai/longformer-base-4096",
        "some tokens attend to all others, with projections of their own",
        "Longformer",
        "modeling_longformer.py:",
        settings={"attention_window": 4},
    ),
    Refused("BigBird", "google/bigbird-roberta-base", "tokens attend to random blocks", "BigBird", "attention_type"),
    Refused(
        "heads of multiple choice",
        "",
        "a result needs several texts",
        "Bert",
        "BertForMultipleChoice",
        "ForMultipleChoice",
    ),
    Refused(
        "SigLIP 2 (images of any shape)",
        "google/siglip2-base-patch16-naflex",
        "each image has a grid of its own, with positions resized to it",
        "Siglip2Vision",
        "image_size",
        settings={"num_patches": 16, "patch_size": 8},
    ),
    Refused(
        "ViT-MAE",
        "facebook/vit-mae-base",
        "it leaves random patches out: save it as ViTModel, which keeps all patches",
        "ViTMAE",
        settings={"image_size": 32, "patch_size": 8},
    ),
    Refused(
        "static embeddings",
        "StaticEmbedding of sentence-transformers",
        "a table of vectors needs no server",
        modules=("StaticEmbedding",),
    ),
)
