"""Bad input for Ray: found on a real cluster before anything is started, one sentence each, with its fix."""

from __future__ import annotations

import pytest

from segue.controller.local_run import run_here
from segue.doctor import launchers
from segue.doctor.subject import Subject
from segue.launch.ray.ray_problems import ray_problems
from tests.doctor.showing import bad, good

pytestmark = pytest.mark.matrix


@pytest.mark.soak
def test_what_the_cluster_cannot_run_is_named_with_its_fix_before_the_first_segment(
    cluster, make_ray_spec, open_log, tmp_path
):
    other = tmp_path / "torch-9.9.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.0\n")
    cluster.add()
    good(launchers.ray(Subject(make_ray_spec(cluster, ranks=1)), longest_seconds=120))
    (large, _) = ray_problems(make_ray_spec(cluster, ranks=2))
    assert "2 bundles of 1 CPU on nodes with the resource spot can never be placed" in large.what
    (label,) = ray_problems(make_ray_spec(cluster, {"spot": "moon"}, ranks=1))
    assert label.what == "no node of the Ray cluster has the resource 'moon'"
    assert "or set ray.spot to a resource that they have" in label.fix
    subject = Subject(make_ray_spec(cluster, {"on_demand": "moon"}, ranks=1))
    told = launchers.ray(subject, longest_seconds=120)
    bad("ray.trainers", told, "fail", "no node of the Ray cluster has the resource 'moon'", "ray.on_demand")

    cluster.add(PYTHONPATH=f"{tmp_path}")
    (version,) = ray_problems(make_ray_spec(cluster, ranks=1))
    assert "has torch 9.9.0 installed, and this machine 2." in version.what
    assert version.fix == "install the same torch on both"
    told = launchers.ray(Subject(make_ray_spec(cluster, ranks=1)), longest_seconds=120)
    bad("ray.trainers", told, "fail", "has torch 9.9.0 installed", "install the same torch")
    spec = make_ray_spec(cluster, {"spot": "moon"}, ranks=1)
    decision = run_here(spec, open_log(spec), on_line=lambda line: None)
    assert decision.action == "failed"
    assert "no node of the Ray cluster has the resource 'moon'" in decision.reason
    assert "Fix: start nodes with" in decision.reason
