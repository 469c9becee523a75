"""The models of a server: the model that answered a request, and all versions with their states."""

from dataclasses import dataclass, field

from headwaiter_proto import encoder_pb2 as pb

_PRECISIONS = {
    pb.PRECISION_FP32: "fp32",
    pb.PRECISION_FP16: "fp16",
    pb.PRECISION_BF16: "bf16",
    pb.PRECISION_INT8: "int8",
}
_STATES = {
    pb.MODEL_STATE_LOADING: "loading",
    pb.MODEL_STATE_READY: "ready",
    pb.MODEL_STATE_DRAINING: "draining",
    pb.MODEL_STATE_FAILED: "failed",
}


@dataclass(frozen=True)
class ModelRef:
    """The model that answered. Compare vectors only if their models have the same digest and the same precision.

    Attributes:
        name: the model's name.
        digest: SHA-256 of the bundle's manifest, in hexadecimal.
        precision: precision of the graph that answered: "fp32", "fp16", "bf16" or "int8"; empty if the server does not
            report it.
        version: the model's version on the server; empty if the server does not report it.
    """

    name: str
    digest: str
    precision: str = ""
    # Replicas may number the same version differently; the digest decides whether vectors can be compared.
    version: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.name} {self.digest[:12]} in {self.precision or 'unknown precision'}"


@dataclass(frozen=True)
class ModelVersion:
    """A version of a model on the server.

    Attributes:
        name: the model's name.
        version: the version, a whole number; empty if the server does not report it.
        state: "loading", "ready" (the version answers requests), "draining" (another version has taken over) or
            "failed"; empty for a state that this client does not know.
        reason: why the version failed; otherwise empty.
        digest: SHA-256 of the bundle's manifest, in hexadecimal; empty unless the version is ready.
        precision: precision of the graph that answers; empty unless the version is ready.
    """

    name: str
    version: str
    state: str
    reason: str = ""
    digest: str = ""
    precision: str = ""


def model_ref(message: pb.ModelRef) -> ModelRef:
    """Return the model that a message names."""
    return ModelRef(message.name, message.digest, precision_name(message.precision), message.version)


def read_versions(response: pb.ListModelsResponse) -> list[ModelVersion]:
    """Return the versions that a message lists; a server that reports no versions lists only models that are ready."""
    refs = {(model.name, model.version): model_ref(model) for model in response.models}
    listed = response.versions or [
        pb.ModelStatus(name=model.name, version=model.version, state=pb.MODEL_STATE_READY) for model in response.models
    ]
    versions = []
    for status in listed:
        ref = refs.get((status.name, status.version), ModelRef(status.name, ""))
        state = _STATES.get(status.state, "")
        versions.append(ModelVersion(status.name, status.version, state, status.reason, ref.digest, ref.precision))
    return versions


def precision_name(precision: pb.Precision) -> str:
    """Return a precision's usual name; the empty string if this client does not know the precision."""
    return _PRECISIONS.get(precision, "")
