"""Exports the metrics of all runs whose parents are in this process, through an endpoint for Prometheus or by OTLP.

Only standard variables of OpenTelemetry control the export. Scrapes and exports read no store, because each parent
passes on the view of its run whenever it refreshes the run's page.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from segue.clock import Clock, SystemClock
from segue.errors import MetricsExportError, MissingExtraError
from segue.metrics.families import FAMILIES, Family, MeasuredRun, Values
from segue.reports.page import RunView

if TYPE_CHECKING:  # Every parent imports this file, but only few parents export metrics.
    from prometheus_client import Metric
    from prometheus_client.registry import Collector

log = logging.getLogger(__name__)

EXPORTERS, HOST, PORT = "OTEL_METRICS_EXPORTER", "OTEL_EXPORTER_PROMETHEUS_HOST", "OTEL_EXPORTER_PROMETHEUS_PORT"
KEPT_SECONDS = 900.0
"""Seconds for which a run is exported after its last refresh, so that even a slow scraper sees the run's end."""


class MetricsExport:
    """The metrics of the runs of this process, and their exporters."""

    def __init__(self, environ: Mapping[str, str], *, clock: Clock) -> None:
        self._environ, self._clock = environ, clock
        self._lock = threading.Lock()
        self._runs: dict[tuple[str, str], tuple[float, dict[str, Values]]] = {}
        self._opened: dict[str, str | None] = {}
        self._trouble = ""

    def open(self) -> str | None:
        """Open each exporter that OTEL_METRICS_EXPORTER names. Return the address of the endpoint, if there is one.

        Raises:
            MetricsExportError: the variables are not valid, or the port is not free. A retry is safe.
            MissingExtraError: the extra `metrics` is not installed.
        """
        names = sorted(filter(None, map(str.strip, self._environ.get(EXPORTERS, "").split(","))))
        openers = {"none": lambda: None, "otlp": self._push, "prometheus": self._listen}
        if unknown := [name for name in names if name not in openers]:
            why = f"{EXPORTERS} names {unknown[0]!r}, which is not an exporter of segue"
            raise MetricsExportError(why=why, fix=f"set {EXPORTERS} to prometheus, otlp, both, or none.")
        with self._lock:
            for name in names:  # The endpoint last, because a port that is not free must not stop OTLP.
                if name not in self._opened:
                    self._opened[name] = openers[name]()
            return self._opened.get("prometheus")

    def show(self, view: RunView) -> None:
        """Export the metrics of a run from now on.

        If the export fails, log the failure once. The run is not affected.
        """
        if not self._environ.get(EXPORTERS):
            return
        try:
            run = MeasuredRun(view)
            found = {family.name: family.values(run) for family in FAMILIES}
            with self._lock:
                self._runs[view.spec.store.url, view.spec.run_id] = (self._clock.monotonic(), found)
            self.open()
        except Exception as error:
            # Catch any exception, because a run must not depend on its metrics.
            if str(error) != self._trouble:
                log.warning("metrics of this parent are not exported, retrying reason=%s", error)
            self._trouble = str(error)

    def values(self, family: Family) -> Values:
        """Return the values of a metric for all runs that were refreshed recently."""
        with self._lock:
            since = self._clock.monotonic() - KEPT_SECONDS
            self._runs = {key: known for key, known in self._runs.items() if known[0] >= since}
            shown = [found[family.name] for _, found in self._runs.values()]
        return {labels: value for values in shown for labels, value in values.items()}

    def _listen(self) -> str:
        from prometheus_client import CollectorRegistry, start_http_server

        host, port = self._environ.get(HOST, "127.0.0.1"), self._environ.get(PORT, "9464")
        registry = CollectorRegistry()
        registry.register(_collector(self))
        try:
            server, _ = start_http_server(int(port), addr=host, registry=registry)
        except (OSError, OverflowError, ValueError) as error:
            why = f"the endpoint for Prometheus cannot listen on {host}:{port} ({error})"
            fix = f"set {PORT} and {HOST} to a free port of this machine. Many parents on one machine share one "
            raise MetricsExportError(
                why=why, fix=fix + "endpoint in `segue serve`, or send their metrics by OTLP."
            ) from None
        return f"http://{host}:{server.server_port}/metrics"

    def _push(self) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
        except ImportError:
            raise MissingExtraError(extra="metrics", needed_for=f"{EXPORTERS}=otlp") from None
        resource = Resource.create({"service.name": self._environ.get("OTEL_SERVICE_NAME", "segue")})
        meter = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource=resource).get_meter(
            "segue"
        )
        for family in FAMILIES:
            create = meter.create_observable_counter if family.is_counter else meter.create_observable_gauge
            create(family.name, [partial(self._observed, family)], unit=family.unit, description=family.help)

    def _observed(self, family: Family, _: Any) -> Iterable[Any]:
        from opentelemetry.metrics import Observation

        found = self.values(family).items()
        return [Observation(value, dict(zip(family.labels, labels, strict=True))) for labels, value in found]


def _collector(export: MetricsExport) -> Collector:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector

    class _Runs(Collector):
        def collect(self) -> Iterable[Metric]:
            for family in FAMILIES:
                kind = CounterMetricFamily if family.is_counter else GaugeMetricFamily
                metric = kind(family.name_in_prometheus, f"{family.help}.", labels=family.labels)
                for labels, value in export.values(family).items():
                    metric.add_metric(labels, value)
                yield metric

    return _Runs()


METRICS = MetricsExport(os.environ, clock=SystemClock())
"""The metrics of this process."""
