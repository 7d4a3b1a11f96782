"""Nodes of a Kubernetes cluster and jobs of a Slurm cluster, before anything is started there."""

from __future__ import annotations

import os
import socket

import pytest

from segue.doctor import launchers
from segue.doctor.check import CheckOutcome, fail, warn
from segue.doctor.pools.judgement import JUDGES
from segue.doctor.subject import Subject
from segue.launch.problem import Problem, refusals
from segue.prefect.kubernetes_nodes import read_nodes, with_nodes
from tests.doctor import templates
from tests.doctor.showing import bad, good, makes_fail
from tests.doctor.test_pools import Needs, on_kubernetes
from tests.support.kube.client import running_cluster

PLUGIN = """
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: k, cluster: {server: "https://127.0.0.1:1", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: segue-has-none, args: []}}}]
contexts: [{name: c, context: {cluster: k, user: u}}]
"""
CONFIGURATIONS = {"plugin": PLUGIN.encode(), "not YAML": b"a: [b\n", "empty": b"", "not UTF-8": b"\xff\xfe"}
SPOT = {"nodeSelector": {"karpenter.sh/capacity-type": "spot"}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    pytest.importorskip("kubernetes_asyncio", reason="the extra `kubernetes` is not installed")
    with running_cluster(tmp_path_factory.mktemp("kube")) as found:
        yield found


@makes_fail("pool.nodes")
def test_a_label_that_no_node_has_is_a_warning(cluster, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(cluster.config_of_person))
    assert len(read_nodes().labels) == 2
    on_spot = on_kubernetes(templates.kubernetes(pod=SPOT))
    on_gpu = on_kubernetes(templates.kubernetes(pod={"nodeSelector": {"gpu": "h100"}}))
    first, second, third = with_nodes([on_spot, on_gpu, on_kubernetes()])
    good(JUDGES["pool.nodes"](first, Needs()))
    bad("pool.nodes", JUDGES["pool.nodes"](second, Needs()), "warn", "gpu=h100", "nodeSelector")
    assert third.nodes is None


@pytest.mark.parametrize("of", ["no right", *CONFIGURATIONS])
def test_where_the_nodes_cannot_be_read_the_reason_is_said_and_nothing_is_raised(cluster, monkeypatch, tmp_path, of):
    (tmp_path / "config").write_bytes(CONFIGURATIONS.get(of, b""))
    monkeypatch.setenv("KUBECONFIG", str(cluster.config if of == "no right" else tmp_path / "config"))
    [state] = with_nodes([on_kubernetes(templates.kubernetes(pod=SPOT))])
    found = JUDGES["pool.nodes"](state, Needs())
    assert found.outcome is CheckOutcome.SKIPPED
    assert ("HTTP 403" if of == "no right" else state.why_no_nodes) in found.reason
    assert state.why_no_nodes


def test_a_missing_configuration_of_the_cluster_is_said_in_the_check_and_nowhere_else(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    assert read_nodes().why == f"No such file or directory ({tmp_path / 'nothing'})"
    assert caplog.text == ""


@makes_fail("slurm.jobs")
def test_a_machine_without_slurm_and_a_folder_that_cannot_be_written_are_named(make_spec, monkeypatch, tmp_path):
    spec = make_spec(slurm={"spot": "preemptible", "on_demand": "batch", "folder": str(tmp_path)})
    monkeypatch.setenv("PATH", str(tmp_path))
    bad("slurm.jobs", launchers.slurm(Subject(spec)), "fail", "this machine has no sbatch", "login node")


def test_each_of_several_problems_has_its_fix():
    problems = [Problem(what="a is wrong", fix="do 1"), Problem(what="b is wrong", fix="do 2")]
    unknown = Problem(what="c is not known", fix="ask", is_certain=False)
    assert launchers.judged([*problems, unknown], "well") == fail("a is wrong; b is wrong", fix="do 1; do 2.")
    assert launchers.judged([unknown, unknown], "well") == warn("c is not known", fix="ask.")
    assert refusals([unknown, *problems]) == (("a is wrong", "do 1"), ("b is wrong", "do 2"))


@makes_fail("slurm.jobs")
def test_partitions_that_a_controller_says_nothing_about_are_not_ok(make_spec, monkeypatch, tmp_path):
    for name in ("sbatch", "scontrol", "scancel", "squeue"):
        program = tmp_path / name
        program.write_text('#!/bin/sh\necho "Unable to contact slurm controller (connect failure)" >&2\nexit 1\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    spec = make_spec(slurm={"spot": "preemptible", "on_demand": "batch", "folder": str(tmp_path)})
    bad("slurm.jobs", launchers.slurm(Subject(spec)), "warn", "the Slurm controller does not answer", "scontrol ping")


@makes_fail("ray.trainers")
def test_a_ray_cluster_that_does_not_answer_is_named(make_spec):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    with socket.socket() as listens:  # Nothing answers there.
        listens.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listens.getsockname()[1]}"
        spec = make_spec(ray={"address": address})
        bad("ray.trainers", launchers.ray(Subject(spec), longest_seconds=2), "fail", "does not answer", "ray start")


@pytest.mark.parametrize("check", [launchers.slurm, launchers.ray])
def test_a_run_that_trains_here_needs_no_cluster(make_spec, check):
    assert check(Subject(make_spec())).outcome is CheckOutcome.SKIPPED
    assert check(Subject(None)).outcome is CheckOutcome.SKIPPED
