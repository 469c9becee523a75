"""Models with the shapes of ModernBERT-base and MPNet-base on one core, without a server."""

from dataclasses import dataclass

from bench.processes import in_new_process
from bench.rounds import Rounds
from bench.run import Run

# The start of the names of the classes in transformers, and the attention. transformers has no "sdpa" for MPNet.
_SHAPES = {"ModernBERT-base": ("ModernBert", "sdpa"), "MPNet-base": ("MPNet", "eager")}
_SEQUENCES, _WAITING = 64, 32
_LOCAL_TOKENS, _LOCAL_PAIRS_PER_ROUND = 4096, 3
_PYTORCH = "bench.studies.pytorch_models"


@dataclass(frozen=True)
class ModelSpeed:
    """Tokens per CPU second in each round; `floor` is the rate of the matrix products alone."""

    shape: str
    headwaiter: Rounds
    onnxruntime: Rounds
    transformers: Rounds
    floor: Rounds

    @property
    def by_onnxruntime(self) -> Rounds:
        """Headwaiter / ONNX Runtime."""
        return self.headwaiter / self.onnxruntime

    @property
    def by_transformers(self) -> Rounds:
        """Headwaiter / transformers."""
        return self.headwaiter / self.transformers


def larger_models(run: Run) -> list[ModelSpeed]:
    """Measure both shapes with random weights, and then the local layers of ModernBERT-base."""
    rounds, speeds = run.sizes.rounds, []
    for shape, (name, attention) in _SHAPES.items():
        rates = in_new_process(_PYTORCH, "tokens_per_cpu_s", name, attention, _SEQUENCES, _WAITING, rounds)
        speed = ModelSpeed(shape, *map(Rounds, rates))
        findings = run.figures.findings.of_part(f"{shape}, {_WAITING} sequences waiting")
        for other, ratio, bound in (
            ("ONNX Runtime", speed.by_onnxruntime, 1.1),
            ("transformers", speed.by_transformers, 1.3),
        ):
            findings.require(f"tokens per CPU second: Headwaiter / {other}, one by one", ratio, "≥", bound)
        speeds.append(speed)
    doubled = Rounds(in_new_process(_PYTORCH, "local_layers_doubled", _LOCAL_TOKENS, _LOCAL_PAIRS_PER_ROUND * rounds))
    findings = run.figures.findings.of_part("local layers of ModernBERT-base")
    findings.require(f"CPU time: {2 * _LOCAL_TOKENS:,} tokens / {_LOCAL_TOKENS:,} tokens", doubled, "≤", 2.3)
    return speeds
