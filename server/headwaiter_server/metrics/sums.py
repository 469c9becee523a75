"""Add up what several processes have counted, for one page of metrics."""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

from headwaiter_server.metrics.totals import Totals

# The value of each series, by the name and the labels of the series.
Labels = tuple[tuple[str, str], ...]
_Key = tuple[str, Labels]
Samples = Mapping[_Key, float]
Exemplars = Mapping[_Key, Exemplar]
# The name and the version of a model; both are empty in a series without a model.
Version = tuple[str, str]
_NO_MODEL: Version = ("", "")
# The names of the series of counters and histograms end with these.
_ENDS = ("_total", "_bucket", "_count", "_sum")


@dataclass(slots=True)
class Counts:
    """What a process has counted.

    Attributes:
        samples: the values of its metrics.
        totals: the totals of each model, by the number of the model.
        exemplars: the exemplars of its metrics.
    """

    samples: Samples = field(default_factory=dict)
    totals: Mapping[int, Totals] = field(default_factory=dict)
    exemplars: Exemplars = field(default_factory=dict)


def read_samples(registry: CollectorRegistry) -> tuple[Samples, Exemplars]:
    """Return the values and the exemplars of all metrics."""
    samples = [(_key(sample), sample) for family in registry.collect() for sample in family.samples]
    exemplars = {key: sample.exemplar for key, sample in samples if sample.exemplar}
    return {key: sample.value for key, sample in samples}, exemplars


def without_gauges(samples: Samples) -> Samples:
    """Return the values that stay true when their process has ended: those of counters and histograms."""
    return {key: value for key, value in samples.items() if key[0].endswith(_ENDS)}


def add_samples(parts: Iterable[Samples]) -> dict[_Key, float]:
    """Return the sum of each series."""
    sums: dict[_Key, float] = {}
    for samples in parts:
        for key, value in samples.items():
            sums[key] = sums.get(key, 0.0) + value
    return sums


class EndedCounts:
    """What processes had counted when they ended.

    Attributes:
        samples: the values of their counters and histograms.
        totals: the totals of each model, by the number of the model.
    """

    def __init__(self) -> None:
        self.samples: Samples = {}
        self.totals: dict[int, Totals] = {}

    def add(self, counts: Counts) -> None:
        """Add what a process had counted when it ended; its gauges are no longer true."""
        self.samples = add_samples([self.samples, without_gauges(counts.samples)])
        for number, totals in counts.totals.items():
            self.totals.setdefault(number, Totals()).add(totals)

    def keep(self, versions: Container[Version], numbers: Container[int]) -> None:
        """Forget the counts of all but these versions of models, and of all but the models with these numbers."""
        kept = {key: _version_of(key[1]) for key in self.samples}
        self.samples = {
            key: self.samples[key] for key, version in kept.items() if version == _NO_MODEL or version in versions
        }
        self.totals = {number: totals for number, totals in self.totals.items() if number in numbers}


class SummedMetrics(Collector):
    """The metrics of this process, with the counts of other processes added to each series.

    A series without an exemplar of this process has the latest one of the others.
    """

    def __init__(
        self, registry: CollectorRegistry, others: Iterable[Samples], exemplars: Iterable[Exemplars] = ()
    ) -> None:
        self._registry, self._others = registry, list(others)
        each = [pair for process in exemplars for pair in process.items()]
        self._exemplars = dict(sorted(each, key=lambda pair: pair[1].timestamp or 0.0))

    def collect(self) -> Iterator[Metric]:
        """Yield each family of this process, and the series that only other processes have."""
        left = add_samples(self._others)
        families = list(self._registry.collect())
        for family in families:
            family.samples = [self._sum(each, left.pop(_key(each), 0.0)) for each in family.samples]
        by_name = {name: family for family in families for name in _series_names(family)}
        for (name, labels), value in sorted(left.items(), key=_in_order):
            if name in by_name:
                by_name[name].samples.append(self._sum(Sample(name, dict(labels), 0.0), value))
        yield from families

    def _sum(self, own: Sample, others: float) -> Sample:
        exemplar = own.exemplar
        if exemplar is None and self._exemplars:
            exemplar = self._exemplars.get(_key(own))
        return own._replace(value=own.value + others, exemplar=exemplar)


def _version_of(labels: Labels) -> Version:
    """Return the model and the version among the labels of a series."""
    values = dict(labels)
    return values.get("model", ""), values.get("version", "")


def _key(sample: Sample) -> _Key:
    return sample.name, tuple(sorted(sample.labels.items()))


def _series_names(family: Metric) -> list[str]:
    """Return the names that the series of a family may have."""
    return [family.name, *(f"{family.name}{end}" for end in _ENDS)]


def _in_order(series: tuple[_Key, float]) -> tuple[list[tuple[str, str]], str, float]:
    """Order the series of a histogram as its own page does: by labels, the buckets by their bounds."""
    (name, labels), _ = series
    bounds = [float(value) for label, value in labels if label == "le"]
    return [each for each in labels if each[0] != "le"], name, bounds[0] if bounds else 0.0
