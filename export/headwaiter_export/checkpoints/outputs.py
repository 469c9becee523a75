"""Decide what a model computes after its layers: vectors of one of several kinds, or scores."""

from dataclasses import dataclass

from headwaiter_export.checkpoints.families.family import Family
from headwaiter_export.checkpoints.files import CheckpointFiles
from headwaiter_export.checkpoints.heads import (
    architectures_with_other_heads,
    check_is_encoder,
    read_head,
    setfit_lines,
    unnamed_labels,
    with_head,
    without_head,
)
from headwaiter_export.checkpoints.json_files import CheckpointJson
from headwaiter_export.checkpoints.m3 import M3_HEAD
from headwaiter_export.checkpoints.modules_json import Modules
from headwaiter_export.checkpoints.vocabulary_head import read_vocabulary_head
from headwaiter_export.checkpoints.word_scores import PairQuestion, word_score_head
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.head import HeadConfig
from headwaiter_export.config.vocabulary_head import VocabularyHeadConfig


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What the caller of an export chooses; the fields are arguments of `read_checkpoint`."""

    pooling: Pooling | None = None
    normalize: bool | None = None
    question: PairQuestion | None = None
    sparse: bool = False
    route: str | None = None
    adapter: str | None = None


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a model computes after its layers.

    Attributes:
        family: the family, with the modules of a head if the model has one.
        pooling: how hidden rows become one vector.
        head: the head of labels.
        vocabulary_head: the head of sparse vectors.
        assumptions: what the export took for granted or left out.
    """

    family: Family
    pooling: Pooling
    head: HeadConfig | None = None
    vocabulary_head: VocabularyHeadConfig | None = None
    assumptions: tuple[str, ...] = ()


def choose_outputs(files: CheckpointFiles, family: Family, config_json: CheckpointJson, choices: Choices) -> Outputs:
    """Return what a model computes; `config_json` is the part of config.json that describes the encoder.

    Raises:
        CheckpointError: the head, or a setting of the head, is not supported.
    """
    modules, whole_json = files.modules, files.config_json
    if choices.sparse:
        vocabulary_head, family = read_vocabulary_head(config_json, family, modules.splade)
        line = "pooled vectors are sparse: they weigh each token of the vocabulary"
        return Outputs(family, Pooling.MAX, vocabulary_head=vocabulary_head, assumptions=(line,))
    if modules.mask is not None:
        return Outputs(without_head(config_json, family), Pooling.NONE, assumptions=_several_vectors_lines(modules))
    if files.has_m3_layers:
        line = "beside its pooled vector, a text has a sparse vector, and a vector of each token"
        return Outputs(without_head(config_json, family), Pooling.CLS, M3_HEAD, assumptions=(line,))
    head = None
    if modules.pooling is not None:
        # sentence-transformers loads the encoder without its head.
        family = without_head(config_json, family)
    elif modules.logit_score is not None or choices.question is not None:
        head = word_score_head(whole_json, family, modules.cross_encoder)
        family = with_head(family, head)
    elif head := read_head(config_json, family, modules.cross_encoder):
        family = with_head(family, head)
    elif choices.pooling is None:
        check_is_encoder(whole_json, modules.cross_encoder, family.default_pooling)
    assumptions = _pooling_lines(whole_json, family, head, chosen=choices.pooling, named=modules.pooling)
    assumptions += setfit_lines(files.folder)
    pooling = choices.pooling or modules.pooling or (Pooling.NONE if head else family.default_pooling)
    return Outputs(family, pooling, head, assumptions=tuple(assumptions))


def _several_vectors_lines(modules: Modules) -> tuple[str, ...]:
    assumptions = ["each hidden row is a vector; without a default prompt, texts without a prompt are documents"]
    if modules.prompts is not None and modules.prompts.values.get("similarity_fn_name") == "meanmaxsim":
        assumptions.append("the checkpoint divides the scores of MaxSim by the number of the query's vectors")
    return tuple(assumptions)


def _pooling_lines(
    whole_json: CheckpointJson,
    family: Family,
    head: HeadConfig | None,
    *,
    chosen: Pooling | None,
    named: Pooling | None,
) -> list[str]:
    """Return assumptions about the head and the pooling, which a user chose, or a file of the checkpoint named."""
    if head:
        unnamed = head.labels == unnamed_labels(len(head.labels))
        labels = "labels without names" if unnamed else "named labels"
        assumptions = [f"{head.function} turns logits into scores, for {len(head.labels)} {labels}"]
        return (
            assumptions
            if chosen
            else [*assumptions, "without --pooling, requests of pooled vectors must name a pooling"]
        )
    assumptions = [f"the head of {name} is left out" for name in architectures_with_other_heads(whole_json)]
    if chosen and named and chosen is not named:
        assumptions.append(f"--pooling {chosen} replaces the pooling of modules.json, {named}")
    if not chosen and not named:
        assumptions.append(
            f"the checkpoint names no pooling: {family.default_pooling}, as usual for "
            f"{whole_json.values['model_type']}, of unit length only with --normalize; --pooling chooses another"
        )
    return assumptions
