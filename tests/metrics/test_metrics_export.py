"""How metrics leave a process: the endpoint for Prometheus and OTLP, and what a run never notices of it."""

from __future__ import annotations

import gzip
import logging
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from segue.clock import SystemClock
from segue.errors import MetricsExportError, MissingExtraError
from segue.metrics.families import FAMILIES
from segue.metrics.metrics_export import EXPORTERS, KEPT_SECONDS, PORT, MetricsExport
from segue.testing.clock import FakeClock
from tests.metrics.measured import STORE, eventful_view, with_trouble
from tests.support.histories import START

ENDPOINT = {EXPORTERS: "prometheus", PORT: "0"}
REPO = Path(__file__).parents[2]


def exporting(**changes: str) -> MetricsExport:
    return MetricsExport(ENDPOINT | changes, clock=SystemClock())


def scraped(metrics: MetricsExport) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """What the endpoint gives, read by Prometheus' own parser: values by labels, by metric."""
    answer = httpx.get(metrics.open())
    assert answer.is_success
    families = text_string_to_metric_families(answer.text)
    return {
        family.name: {frozenset(sample.labels.items()): sample.value for sample in family.samples}
        for family in families
    }


@pytest.fixture
def taken_port():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield str(other.getsockname()[1])


def test_the_endpoint_gives_every_metric_of_every_run():
    metrics = exporting()
    for name in ("one", "two"):
        metrics.show(eventful_view(name))
    found = scraped(metrics)
    assert len(found) == len(FAMILIES)
    steps = {frozenset({("run", name), ("store", STORE)}): 50 for name in ("one", "two")}
    assert found["segue_committed_steps"] == steps


def test_runs_of_two_stores_may_have_the_same_name():
    metrics = exporting()
    for url in ("s3://bucket/a", "s3://bucket/b"):
        metrics.show(eventful_view(store={"url": url}))
    stores = {dict(labels)["store"] for labels in scraped(metrics)["segue_goal_steps"]}
    assert stores == {"s3://bucket/a", "s3://bucket/b"}


def test_a_name_with_quotes_and_line_breaks_arrives_as_it_is():
    name = 'a"b\\c\n# TYPE d gauge'
    metrics = exporting()
    metrics.show(eventful_view(pools={"currency": "EUR", "spot": [{"deployment": f"segment/{name}"}]}))
    pools = {dict(labels)["pool"] for labels in scraped(metrics)["segue_preemptions"]}
    assert pools == {f"segment/{name}"}


def test_a_scrape_reads_no_store_and_shows_the_newest_view():
    metrics = exporting()
    view = eventful_view()
    metrics.show(view)
    metrics.show(with_trouble(view))
    (up,) = scraped(metrics)["segue_store_up"].values()
    assert up == 0


def test_an_ended_run_is_shown_for_a_while_and_then_no_more():
    clock = FakeClock(START)
    metrics = MetricsExport(ENDPOINT, clock=clock)
    metrics.show(eventful_view("ended"))
    clock.advance(KEPT_SECONDS)
    metrics.show(eventful_view("open"))
    assert len(scraped(metrics)["segue_goal_steps"]) == 2
    clock.advance(1)
    ((labels, _),) = scraped(metrics)["segue_goal_steps"].items()
    assert dict(labels)["run"] == "open"


def test_without_the_variable_nothing_is_opened_and_nothing_is_kept():
    metrics = MetricsExport({}, clock=SystemClock())
    metrics.show(eventful_view())
    assert metrics.open() is None
    assert [metrics.values(family) for family in FAMILIES] == [{}] * len(FAMILIES)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({EXPORTERS: "promethues"}, "OTEL_METRICS_EXPORTER names 'promethues', which is not an exporter of segue"),
        ({PORT: "http"}, "cannot listen on 127.0.0.1:http"),
        ({PORT: "99999"}, "cannot listen on 127.0.0.1:99999"),
        ({"OTEL_EXPORTER_PROMETHEUS_HOST": "no.such.host.invalid"}, "cannot listen on no.such.host.invalid:0"),
    ],
)
def test_variables_that_are_not_valid_are_refused_with_the_fix(changes, why):
    with pytest.raises(MetricsExportError) as caught:
        exporting(**changes).open()
    assert why in str(caught.value)
    assert "Fix: set OTEL_" in str(caught.value)


def test_a_port_that_is_taken_is_named_with_the_fix(taken_port):
    with pytest.raises(MetricsExportError) as caught:
        exporting(**{PORT: taken_port}).open()
    assert f"127.0.0.1:{taken_port}" in str(caught.value)
    assert "in use" in str(caught.value)


def test_a_parent_without_its_port_warns_once_and_takes_the_port_when_it_is_free(caplog):
    first = exporting()
    port = first.open().rpartition(":")[2].partition("/")[0]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        second = exporting(**{PORT: str(other.getsockname()[1])})
        for _ in range(3):
            second.show(eventful_view())
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert ["Fix: set OTEL_EXPORTER_PROMETHEUS_PORT" in record.getMessage() for record in warnings] == [True]
    second.show(eventful_view())
    assert scraped(second)["segue_goal_steps"]
    assert port not in second.open()


def test_a_metric_that_cannot_be_computed_does_not_reach_the_run(caplog):
    metrics = exporting()
    metrics.show(None)
    assert "metrics of this parent are not exported" in caplog.text
    assert all(found == {} for found in scraped(metrics).values())


class Collector(HTTPServer):
    """A collector of OpenTelemetry for OTLP over HTTP."""

    def __init__(self) -> None:
        received = self.received = list[tuple[str, ExportMetricsServiceRequest]]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                received.append((self.path, ExportMetricsServiceRequest.FromString(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def collector():
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


PARENT = """
from segue.metrics.metrics_export import METRICS
from tests.metrics.measured import eventful_view
METRICS.show(eventful_view("pushed"))
"""


def end_of_parent(collector: Collector | None, *, port: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    """A process that shows the metrics of a run and ends at once."""
    address = f"http://127.0.0.1:{collector.server_port if collector is not None else port}"
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, EXPORTERS: "otlp", "PYTHONPATH": str(REPO)} | more
    command = [sys.executable, "-c", PARENT]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_a_parent_that_ends_at_once_has_sent_its_metrics_by_otlp(collector):
    ended = end_of_parent(collector)
    assert (ended.returncode, ended.stderr) == (0, "")
    path, request = collector.received[-1]
    assert path == "/v1/metrics"
    (resource,) = request.resource_metrics
    named = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert named["service.name"] == "segue"
    ((*sent,),) = [scope.metrics for scope in resource.scope_metrics]
    assert {metric.name: metric.unit for metric in sent} == {family.name: family.unit for family in FAMILIES}
    by_name = {metric.name: metric for metric in sent}
    counters = {metric.name for metric in sent if metric.HasField("sum") and metric.sum.is_monotonic}
    assert counters == {family.name for family in FAMILIES if family.is_counter}
    (slack,) = by_name["segue.slack"].gauge.data_points
    assert slack.as_double == pytest.approx(3170)
    assert {item.key: item.value.string_value for item in slack.attributes} == {"run": "pushed", "store": STORE}
    verdicts = by_name["segue.resume_verdicts"].sum.data_points
    broken = {"check": "resume", "verdict": "broken"}
    labels = [{item.key: item.value.string_value for item in point.attributes} for point in verdicts]
    assert [p.as_double for p, found in zip(verdicts, labels, strict=True) if broken.items() <= found.items()] == [1]


def test_otlp_is_sent_though_the_port_of_the_endpoint_is_taken(collector, taken_port):
    ended = end_of_parent(collector, **{EXPORTERS: "prometheus,otlp", PORT: taken_port})
    assert "Fix: set OTEL_EXPORTER_PROMETHEUS_PORT" in ended.stderr
    assert collector.received


@pytest.mark.matrix
def test_a_collector_that_does_not_answer_fails_no_parent(taken_port):
    ended = end_of_parent(None, port=int(taken_port), OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert ended.returncode == 0


def test_the_extra_is_named_if_otlp_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(MissingExtraError) as caught:
        exporting(**{EXPORTERS: "otlp"}).open()
    assert str(caught.value).endswith("Fix: pip install 'segue[metrics]'")
