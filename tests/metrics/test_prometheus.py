"""A real Prometheus scrapes the endpoint, draws every panel of the dashboard, and raises every alert."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import yaml

from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.metrics.families import FAMILIES
from segue.metrics.metrics_export import MetricsExport
from segue.prefect.ui.artifacts import view_of
from segue.records import VerdictKind
from tests.metrics.measured import eventful_view, with_trouble
from tests.metrics.test_metrics_export import ENDPOINT
from tests.support.servers.prometheus import LIMIT_SECONDS, MONITORING, WHY_NOT, running_prometheus

DASHBOARD = json.loads((MONITORING / "grafana-dashboard.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
RULES = [rule for group in yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
KNOWN = {family.name_in_prometheus for family in FAMILIES}


def shown(expression: str) -> str:
    """An expression of the dashboard as Grafana sends it, with all runs chosen."""
    return expression.replace("$run", ".*").replace("$store", ".*")


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bsegue_\w+", text))


def test_the_dashboard_and_the_alerts_use_only_metrics_that_exist():
    variables = " ".join(str(variable["query"]) for variable in DASHBOARD["templating"]["list"])
    alerts = " ".join(rule["expr"] for rule in RULES)
    assert names_in(variables) | names_in(alerts) | names_in(" ".join(EXPRESSIONS)) <= KNOWN


def test_every_metric_but_those_of_other_metrics_has_a_panel():
    assert KNOWN - names_in(" ".join(EXPRESSIONS)) == {
        "segue_committed_steps",
        "segue_deadline_timestamp_seconds",
        "segue_waited_seconds",
    }


def test_panels_have_ids_and_places_of_their_own():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert {panel["type"] for panel in panels} <= {"table", "timeseries", "bargauge"}
    assert all(target["datasource"]["uid"] == "${datasource}" for panel in panels for target in panel["targets"])


@pytest.mark.matrix
def test_prometheus_has_data_for_every_panel_and_raises_the_alerts(tmp_path):
    metrics = MetricsExport(ENDPOINT, clock=SystemClock())
    metrics.show(eventful_view(resume=VerdictKind.EXACT))
    with running_prometheus(tmp_path, metrics.open()) as prometheus:
        for expression in EXPRESSIONS:
            assert prometheus.wait_for(shown(expression)), expression
        assert prometheus.value("segue_work_at_risk_seconds") == 14
        # The last refresh of this run was long ago, and its heartbeat with it.
        assert {row["metric"]["run"] for row in prometheus.query(expression_of("SegueNoHeartbeat"))} == {"nightly"}
        assert prometheus.query(expression_of("SegueStoreDown")) == []
        metrics.show(with_trouble(eventful_view(resume=VerdictKind.EXACT, deadline_in=380)))
        for name in ("SegueStoreDown", "SegueRunLate"):
            assert prometheus.wait_for(expression_of(name))
        assert prometheus.query(expression_of("SegueResumeBroken")) == []
        metrics.show(eventful_view(resume=VerdictKind.BROKEN))
        assert prometheus.wait_for(expression_of("SegueResumeBroken"))


def expression_of(alert: str) -> str:
    (rule,) = [rule for rule in RULES if rule["alert"] == alert]
    return rule["expr"]


@pytest.mark.matrix
def test_prometheus_gets_a_run_that_trained(tmp_path, fork_server, make_spec):
    spec = make_spec(run_id="trained", steps=60)
    runlog = open_run(spec, clock=SystemClock())
    metrics = MetricsExport(ENDPOINT, clock=SystemClock())
    with running_prometheus(tmp_path, metrics.open()) as prometheus:
        metrics.show(view_of(runlog, spec, now=SystemClock().now()))
        assert prometheus.wait_for('segue_committed_steps{run="trained"} == 0')
        fork_server.run_to_the_end(runlog, spec)
        metrics.show(view_of(runlog, spec, now=SystemClock().now()))
        assert prometheus.wait_for('segue_run_state{run="trained", state="finished"}')
        assert prometheus.value("segue_committed_steps") == 60
        assert 0 < prometheus.value("segue_goodput_ratio") <= 1
        assert prometheus.value("sum(segue_paid_seconds)") > 0
        assert prometheus.value("segue_cost") > 0
        assert prometheus.value("time() - segue_refreshed_timestamp_seconds") < LIMIT_SECONDS
        # A name of a metric that was renamed would leave its old series behind.
        names = {row["metric"]["__name__"] for row in prometheus.query('{__name__=~"segue_.*"}')}
        assert names <= KNOWN


@pytest.mark.skipif(shutil.which("promtool") is None, reason=WHY_NOT)
@pytest.mark.parametrize(("kind", "file"), [("rules", "alerts.yml"), ("config", "prometheus.yml")])
def test_promtool_accepts_the_files(kind, file):
    command = ["promtool", "check", kind, str(MONITORING / file)]
    checked = subprocess.run(command, check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.matrix
def test_a_hundred_runs_are_scraped_in_less_than_a_second(tmp_path):
    metrics = MetricsExport(ENDPOINT, clock=SystemClock())
    view = eventful_view()
    for number in range(100):
        metrics.show(replace(view, spec=view.spec.model_copy(update={"run_id": f"run-{number}"})))
    with running_prometheus(tmp_path, metrics.open()) as prometheus:
        prometheus.wait_for("count(segue_goal_steps) == 100")
        prometheus.wait_for("scrape_samples_scraped > 3000")
        assert prometheus.value("scrape_duration_seconds") < 1
