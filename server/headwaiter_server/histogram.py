"""A Prometheus histogram that finds buckets by binary search; prometheus_client's histogram tries one after another."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from threading import Lock

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Series:
    """The values observed under one set of label values.

    Args:
        bounds: rising upper bounds of the buckets; a last bucket without an upper bound is added.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = Lock()

    def observe(self, value: float) -> None:
        """Count a value."""
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def read(self) -> tuple[list[int], float]:
        """Return the cumulative number of values up to each bucket, and the sum of all values."""
        with self._lock:
            return list(accumulate(self._counts)), self._sum


class Histogram(Collector):
    """A histogram with one series for each set of label values."""

    def __init__(
        self,
        name: str,
        description: str,
        bounds: Sequence[float],
        registry: CollectorRegistry,
        labels: Sequence[str] = (),
    ) -> None:
        self._name, self._description, self._bounds, self._labels = name, description, bounds, labels
        self._series: dict[tuple[str, ...], Series] = {}
        registry.register(self)

    def labels(self, *values: str) -> Series:
        """Return the series of these label values; create it if it is new."""
        series = self._series.get(values)
        # Another thread may create the same series at the same time; setdefault is atomic.
        return self._series.setdefault(values, Series(self._bounds)) if series is None else series

    def remove_by_labels(self, labels: Mapping[str, str]) -> None:
        """Remove the series that have these values of these labels."""
        wanted = [(self._labels.index(label), value) for label, value in labels.items()]
        for values in tuple(self._series):
            if all(values[place] == value for place, value in wanted):
                del self._series[values]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the histogram as prometheus_client expects it."""
        family = HistogramMetricFamily(self._name, self._description, labels=self._labels)
        bounds = (*self._bounds, float("inf"))
        names = [floatToGoString(bound) for bound in bounds]  # type: ignore[no-untyped-call]
        for values, series in tuple(self._series.items()):
            counts, total = series.read()
            family.add_metric(values, list(zip(names, counts, strict=True)), total)
        yield family
