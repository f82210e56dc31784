"""Metrics as Prometheus reads them, by prometheus-client. Invariant: a scrape reads memory only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import prometheus_client
from prometheus_client import exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from redbeat.telemetry.metrics import OF_BEAT, OF_SCHEDULE, SHARD_LABEL, Metric

if TYPE_CHECKING:
    from redbeat.telemetry.figures import OwnFigures
    from redbeat.telemetry.gathering import View

_KINDS: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class Exposition:
    """The text of the metrics of one beat.

    Arguments:
        views: returns what this beat shows now of the schedule, or of its shards.
        own: what it shows of itself.
    """

    def __init__(self, views: Callable[[], Sequence[View]], own: OwnFigures) -> None:
        self._views = views
        self._own = own
        self._registry = prometheus_client.CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self, accept: str) -> tuple[str, bytes]:
        """Return the content type and the text, in OpenMetrics' format or Prometheus', as ``accept`` says.

        Arguments:
            accept: the header of the request.
        """
        encode, content_type = exposition.choose_encoder(accept)
        return content_type, encode(self._registry)

    def collect(self) -> Iterator[Any]:
        """Yield all metrics, as prometheus-client asks for them."""
        yield from _families(OF_BEAT, [self._own], ())
        views = self._views()
        if views:  # else another beat shows the schedule
            yield from _families(OF_SCHEDULE, views, (SHARD_LABEL,) if views[0].shard else ())


def _families(metrics: Sequence[Metric], sources: Sequence[Any], more: tuple[str, ...]) -> Iterator[Any]:
    for metric in metrics:
        plain = re.sub(r":\w+:`([^`]+)`|``", r"\1", metric.doc)
        family = _KINDS[metric.type](metric.name, plain, labels=(*metric.labels, *more))
        for source in sources:
            shard = (source.shard,) if more else ()
            for labels, value in metric.samples(source).items():
                family.add_metric((*labels, *shard), *(value if isinstance(value, tuple) else (value,)))
        yield family
