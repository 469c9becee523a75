"""The models of a server: the model that answered a request, all versions with their states, and descriptions."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

from headwaiter_client.calls.options import Pooling
from headwaiter_proto import encoder_pb2 as pb

Task: TypeAlias = Literal["encode", "classify", "classify_tokens", "rerank", "attend"]
_TASKS: dict[int, Task] = {pb.Task.Value(f"TASK_{task.upper()}"): task for task in get_args(Task)}
_POOLINGS = {pb.Pooling.Value(f"POOLING_{pooling.upper()}"): pooling for pooling in ("none", *get_args(Pooling))}


def _names(prefix: str, values: Iterable[tuple[str, int]]) -> dict[int, str]:
    """Return the names of an enum of the API without their prefix, in lower case: "fp32" for PRECISION_FP32."""
    return {value: name.removeprefix(prefix).lower() for name, value in values if value}


_PRECISIONS = _names("PRECISION_", pb.Precision.items())
_STATES = _names("MODEL_STATE_", pb.ModelState.items())
_SCORE_FUNCTIONS = _names("SCORE_FUNCTION_", pb.ScoreFunction.items())


@dataclass(frozen=True)
class ModelRef:
    """The model that answered. Compare vectors only if their models have the same `results_digest`.

    Attributes:
        name: the model's name.
        digest: SHA-256 of the bundle's manifest, in hexadecimal: identifies all files of the bundle.
        precision: precision of the graph that answered: "fp32", "fp16", "bf16" or "int8"; empty if the server does not
            report it.
        version: the model's version on the server; empty if the server does not report it.
        results_digest: digest of what decides the results, in hexadecimal; another export of the same model keeps it.
            Empty if the server does not report it.
    """

    name: str
    digest: str
    precision: str = ""
    # Replicas may number the same version differently; the digest decides whether vectors can be compared.
    version: str = field(default="", compare=False)
    results_digest: str = field(default="", compare=False)

    def is_comparable(self, other: "ModelRef") -> bool:
        """Return whether results of this model can be compared with results of the other model."""
        same_results = self.results_digest != "" and self.results_digest == other.results_digest
        return self.precision == other.precision and (same_results or self.digest == other.digest)

    def __str__(self) -> str:
        return f"{self.name} {self.digest[:12]} in {self.precision or 'unknown precision'}"


@dataclass(frozen=True)
class ModelVersion:
    """A version of a model on the server.

    Attributes:
        name: the model's name.
        version: the version, a whole number; empty if the server does not report it.
        state: "on_disk" (the first request loads the version), "loading", "ready" (the version answers requests),
            "draining" (another version has taken over, or another model needs the memory) or "failed"; empty for a
            state that this client does not know.
        reason: why the version failed, now or when it was loaded last; otherwise empty.
        digest: SHA-256 of the bundle's manifest, in hexadecimal; empty unless the version is ready or on disk.
        precision: precision of the graph that answers; empty unless the version is ready.
        results_digest: see `ModelRef`; empty unless the version is ready.
        loads: how often the server has loaded the model, in any version; 0 if the server does not report it.
        evictions: how often the server has unloaded the model to make room for another one.
        loading_s: seconds that these loads took.
    """

    name: str
    version: str
    state: str
    reason: str = ""
    digest: str = ""
    precision: str = ""
    results_digest: str = ""
    loads: int = 0
    evictions: int = 0
    loading_s: float = 0.0


@dataclass(frozen=True)
class Head:
    """The head of a model, which gives scores for labels.

    Attributes:
        labels: the labels, in the order of the scores; empty for a model without a head.
        function: how logits become scores: "sigmoid", "softmax", "relu", or "identity" for logits that are the
            scores; empty for a model without a head.
        per_token: whether each token has scores; otherwise each sequence has.
    """

    labels: tuple[str, ...]
    function: str
    per_token: bool


@dataclass(frozen=True)
class ModelDescription:
    """A model's inputs, its limits and how it runs.

    The attributes that are messages have the fields that docs/reference/grpc.md describes.

    Attributes:
        model: name, version, digests and precision.
        tasks: what the model does: "encode", "classify" (a score for each label), "classify_tokens" (for each label and
            token), "rerank" (one score for a pair of a query and a document) and "attend". Without the tasks that this
            client does not know.
        takes_texts: whether the model takes texts.
        takes_pairs: whether the model takes pairs of texts.
        takes_tokens: whether the model takes token ids.
        takes_features: whether the model takes feature vectors.
        takes_images: whether the model takes JPEG and PNG files.
        max_text_tokens: maximum tokens of a text, special tokens and prompt included; 0 unless the model takes texts.
        min_tokens: minimum tokens of a sequence.
        max_tokens: maximum tokens of a sequence of token ids or features.
        vocabulary_size: token ids are below this number; 0 unless the model takes token ids.
        token_types: token types are below this number; 0 if all tokens have the type 0.
        sparse: whether a pooled vector has one number for each token id, of which most are 0.
        weighs_tokens: whether the option `sparse` works.
        feature_width: values of a feature vector; 0 unless the model takes features.
        prefix_rows: rows of zeros at the start of each sequence of features.
        image: the images that the model takes; all fields are 0 or empty for other models.
        sound: the sounds that the model takes, see `sound_rows`; all fields are 0 or false for other models.
        target: how sequences are divided in source and target, see `source_and_target`; None for other models.
        width: values of a pooled vector; of a hidden vector for a model without pooling; 0 for a model of scores alone.
        hidden_width: values of a hidden vector; 0 for a model without them.
        layers: attention layers; 0 if the number is unknown.
        heads: attention heads of each layer; 0 if the number is unknown.
        pooling: the model's own pooling, as in the option `pooling`; "none" for a model without pooling.
        poolings: the values that the option `pooling` may have.
        normalized: whether pooled vectors have unit length unless a call says `normalize=False`.
        prompts: the prompts that the option `prompt` may name, with their texts and their numbers of tokens.
        default_prompt: name of the prompt of texts without the option; empty for no prompt.
        head: the labels of `classify`.
        attends: whether `attend` works.
        limits: the limits of a request.
        execution: where and how the model runs.
        parity: how far the graphs of the bundle differ from PyTorch.
        message: the reply of the server, with all fields of GetModelResponse.
    """

    model: ModelRef
    tasks: frozenset[Task]
    takes_texts: bool
    takes_pairs: bool
    takes_tokens: bool
    takes_features: bool
    takes_images: bool
    max_text_tokens: int
    min_tokens: int
    max_tokens: int
    vocabulary_size: int
    token_types: int
    sparse: bool
    weighs_tokens: bool
    feature_width: int
    prefix_rows: int
    image: pb.ImageFormat
    sound: pb.SoundFormat
    target: pb.TargetFormat | None
    width: int
    hidden_width: int
    layers: int
    heads: int
    pooling: str
    poolings: tuple[Pooling, ...]
    normalized: bool
    prompts: tuple[pb.Prompt, ...]
    default_prompt: str
    head: Head
    attends: bool
    limits: pb.RequestLimits
    execution: pb.Execution
    parity: tuple[pb.GraphParity, ...]
    message: pb.GetModelResponse = field(repr=False)


def describe(message: pb.GetModelResponse) -> ModelDescription:
    """Return the description in a message; names of enum values that this client does not know are empty."""
    same = {each.name: getattr(message, each.name) for each in fields(ModelDescription) if each.name != "message"}
    return ModelDescription(
        **same
        | {
            "model": model_ref(message.model),
            "tasks": frozenset(_TASKS[task] for task in message.tasks if task in _TASKS),
            "hidden_width": 0 if message.without_rows else message.hidden_width or message.width,
            "pooling": _POOLINGS.get(message.pooling, ""),
            "poolings": tuple(_POOLINGS[pooling] for pooling in message.poolings if pooling in _POOLINGS),
            "prompts": tuple(message.prompts),
            "head": Head(
                tuple(message.head.labels),
                _SCORE_FUNCTIONS.get(message.head.function, ""),
                message.head.per_token,
            ),
            "parity": tuple(message.parity),
            "target": message.target if message.HasField("target") else None,
            "message": message,
        }
    )


def model_ref(message: pb.ModelRef) -> ModelRef:
    """Return the model that a message names."""
    return _model_ref(message.name, message.digest, message.precision, message.version, message.results_digest)


@lru_cache(64)  # Every reply names its model, and a program uses few.
def _model_ref(name: str, digest: str, precision: pb.Precision, version: str, results_digest: str) -> ModelRef:
    return ModelRef(name, digest, _PRECISIONS.get(precision, ""), version, results_digest)


def read_versions(response: pb.ListModelsResponse) -> list[ModelVersion]:
    """Return the versions that a message lists; a server that reports no versions lists only models that are ready."""
    refs = {(model.name, model.version): model_ref(model) for model in response.models}
    listed = response.versions or [
        pb.ModelStatus(name=model.name, version=model.version, state=pb.MODEL_STATE_READY) for model in response.models
    ]
    versions = []
    for status in listed:
        ref = refs.get((status.name, status.version), ModelRef(status.name, ""))
        facts = status.name, status.version, _STATES.get(status.state, ""), status.reason
        digests = ref.digest, ref.precision, ref.results_digest
        versions.append(ModelVersion(*facts, *digests, status.loads, status.evictions, status.loading_s))
    return versions
