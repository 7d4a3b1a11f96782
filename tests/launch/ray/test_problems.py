"""What a Ray cluster lacks for a run, and how much of one there is room for: from what was seen of it."""

from __future__ import annotations

import signal
import threading
import tomllib
from pathlib import Path

import pytest

from segue.errors import RaySetupError, SpecError
from segue.launch.assignment import Assignment
from segue.launch.problem import Problem
from segue.launch.ray import ray_problems as checks
from segue.launch.ray import ray_trainer
from segue.launch.ray.driver_status import DriverStatus, StatusFolder
from segue.launch.ray.placement_group import Node, avoidable, bundle_of, bundles_now, in_words, is_to_ask, room
from segue.launch.ray.problems import (
    REQUIREMENT,
    NodeFacts,
    node_problems,
    not_checked,
    resource_problems,
    version_refusal,
)
from segue.launch.ray.ray_problems import ray_problems, require_ray
from segue.records import Capacity, SegmentPlan
from segue.spec import RunSpec

MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.61.0
    Python: 3.12.4
This process on 10.0.0.1 was started with:
    Ray: 2.60.0
    Python: 3.11.2
"""


def node(name="a", *, is_draining=False, **resources):
    return Node(node_id=name, total=resources, available=resources, is_draining=is_draining)


def facts(**changed):
    usual = {"node_id": "f" * 56, "address": "10.0.0.2", "python": "3.11.2", "torch": "2.13.0", "segue": "1.0.0"}
    return NodeFacts.model_validate({"has_folder": True} | usual | changed)


def test_a_run_without_a_ray_table_has_no_ray_problems_and_is_stored_as_before(make_spec):
    assert ray_problems(make_spec()) == []
    assert "ray" not in make_spec().model_dump(mode="json")


def test_a_node_that_could_not_be_looked_at_is_logged_and_no_reason_to_refuse_the_run(
    make_ray_spec, monkeypatch, caplog
):
    unknown = not_checked("the node abc", "no answer within 30 s")
    wrong = Problem(what="no node has the resource 'spot'", fix="start one")
    monkeypatch.setattr(checks, "ray_problems", lambda spec: [unknown])
    require_ray(make_ray_spec())
    assert "the versions of the node abc are not checked: no answer within 30 s. Fix: `ray status`" in caplog.text
    monkeypatch.setattr(checks, "ray_problems", lambda spec: [unknown, wrong])
    with pytest.raises(RaySetupError) as refused:
        require_ray(make_ray_spec())
    assert refused.value.problems == ((wrong.what, wrong.fix),)


def test_a_ray_table_survives_being_stored(make_ray_spec):
    spec = make_ray_spec(ray={"min_ranks": 1})
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec
    assert spec.trains_elsewhere


def test_a_range_of_ranks_is_the_most_and_the_least_of_them(make_ray_spec):
    spec = make_ray_spec(ranks={"min": 2, "max": 8})
    assert (spec.ranks, spec.ray.min_ranks) == (8, 2)
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_range_of_ranks_needs_a_ray_cluster(make_spec):
    with pytest.raises(SpecError, match=r"ranks: a range of ranks .* needs \[ray\]"):
        make_spec(ranks={"min": 2, "max": 8})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"ranks": {"min": 2}}, "ranks: a range of ranks is written {min = 2, max = 8}"),
        ({"ranks": {"min": 2, "max": 8}, "ray": {"min_ranks": 2}}, "[ray] may not set min_ranks"),
        ({"ranks": {"min": 2, "max": "many"}}, "ranks"),
        ({"ranks": {"min": 0, "max": 8}}, "ray.min_ranks"),
        ({"ranks": None}, "ranks must be a number"),
        ({"ranks": 3, "ray": {"ranks_per_bundle": 2}}, "ranks is 3, and ranks_per_bundle is 2"),
        ({"ranks": 2, "ray": {"min_ranks": 3}}, "min_ranks is 3, but ranks is only 2"),
        ({"slurm": {"spot": "a", "on_demand": "b"}}, "either on a Slurm cluster or on a Ray cluster"),
        ({"ray": {"address": "ray://head:10001"}}, "ray.address"),
        ({"ray": {"on_demand": "a b"}}, "ray.on_demand"),
        (
            {"recipe": None, "program": {"command": ["python", "a.py"]}, "ray": {"min_ranks": 1}},
            "ranks of a program cannot change",
        ),
    ],
)
def test_a_table_that_no_cluster_could_run_is_refused(make_ray_spec, fields, why):
    with pytest.raises(SpecError) as refused:
        make_ray_spec(**fields)
    assert why in str(refused.value)


def test_a_bundle_takes_its_ranks_cpus_and_gpus_and_next_to_nothing_of_the_resource_that_marks_the_node(make_ray_spec):
    spec = make_ray_spec(ranks=8, ray={"ranks_per_bundle": 4, "cpus_per_rank": 2, "gpus_per_rank": 1})
    assert bundle_of(spec, Capacity.SPOT) == {"CPU": 8.0, "GPU": 4.0, "spot": 0.001}
    on_demand = bundle_of(spec, Capacity.ON_DEMAND)
    assert in_words(2, on_demand) == "2 bundles of 8 CPU and 4 GPU on nodes with the resource on_demand"


def test_room_is_counted_node_by_node():
    bundle = {"CPU": 2.0, "spot": 0.001}
    assert room([{"CPU": 3.0, "spot": 1.0}, {"CPU": 5.0, "spot": 0.002}, {"CPU": 9.0}, {"spot": 1.0}], bundle) == 3


def test_an_attempt_asks_for_all_that_there_is_room_for_and_never_for_less_than_it_needs(make_ray_spec):
    spec = make_ray_spec(ray={"min_ranks": 2}, ranks=4)

    def asked(*nodes):
        return bundles_now(spec, Capacity.SPOT, nodes)

    assert asked(node(CPU=8, spot=1)) == 4
    assert asked(node(CPU=1, spot=1), node(CPU=2, spot=1)) == 3
    assert asked(node(CPU=2, spot=1), node(CPU=2, spot=1, is_draining=True)) == 2
    assert asked(node(CPU=8, on_demand=1)) == 2
    assert bundles_now(spec, Capacity.SPOT, [], may_grow=True) == 4, "an autoscaler starts what is asked for"


def test_nodes_are_avoided_if_the_others_have_room_for_enough_bundles_even_while_they_are_busy(make_ray_spec):
    spec, busy = make_ray_spec(ray={"min_ranks": 2}, ranks=4), Node("b", {"CPU": 2, "spot": 1}, {})
    bad = Node("a", {"CPU": 4, "spot": 1}, {"CPU": 4, "spot": 1})
    assert avoidable(spec, Capacity.SPOT, [bad, busy], ("a",)) == ("a",)
    assert avoidable(spec, Capacity.ON_DEMAND, [bad, busy], ("a",)) == ()
    assert avoidable(spec, Capacity.SPOT, [bad], ("a",)) == ()


@pytest.mark.parametrize(
    ("asked", "looks", "asks"),
    [
        (0, [0, 3], True),
        (3, [3, 3], False),
        (3, [3, 2], False),  # Its own bundles may be what is no longer free.
        (3, [2, 2], True),
        (2, [3, 4], False),
        (2, [4, 4], True),
    ],
)
def test_another_number_of_bundles_is_asked_for_only_where_two_looks_agree(asked, looks, asks):
    before, seen = looks
    assert is_to_ask(seen, seen_before=before, asked=asked) is asks


def test_a_resource_that_no_node_has_and_a_group_that_is_too_large_are_named_with_the_fix(make_ray_spec):
    spec = make_ray_spec(ranks=3)
    missing, large = resource_problems(spec, [node("a", CPU=1, spot=1), node("b", CPU=1, spot=1)])[::-1]
    assert missing.what == "no node of the Ray cluster has the resource 'on_demand'"
    assert "ray.on_demand" in missing.fix
    assert large.what.startswith("3 bundles of 1 CPU on nodes with the resource spot can never be placed")
    assert large.what.endswith("have room for 2")
    assert "to 2 or less" in large.fix
    assert resource_problems(spec, [node(CPU=3, spot=1, on_demand=1)]) == []


def test_nodes_with_another_python_or_torch_or_without_the_code_are_named():
    here = facts(address="10.0.0.1")
    fits = facts(python="3.11.9", torch="2.13.0+cu130")
    others = [
        fits,
        facts(python="3.12.1"),
        facts(torch="2.12.0"),
        facts(torch=None),
        facts(has_folder=False),
        facts(segue="0.0.1"),
    ]
    found = [problem.what.partition(") ")[2] for problem in node_problems(here, others, folder="/app")]
    assert found == [
        "has Python 3.12.1, and this machine 3.11.2",
        "has torch 2.12.0 installed, and this machine 2.13.0",
        "has torch not installed, and this machine 2.13.0",
        "has no folder /app",
        "has segue 0.0.1, and this machine 1.0.0",
    ]


def test_rays_own_refusal_of_another_version_is_one_sentence():
    found = version_refusal(MISMATCH, address="head:6379")
    assert found is not None
    there, here = "Ray 2.61.0 and Python 3.12.4", "Ray 2.60.0 and Python 3.11.2"
    assert found.what == f"the Ray cluster at head:6379 has {there}, and this machine {here}"
    assert version_refusal("Could not connect", address="head:6379") is None


def test_a_machine_without_ray_is_named_with_the_fix(make_ray_spec, monkeypatch):
    monkeypatch.setattr(checks, "has_ray", lambda: False)
    with pytest.raises(RaySetupError) as refused:
        require_ray(make_ray_spec())
    assert "this machine has no Ray" in str(refused.value)
    assert "pip install 'segue[ray]'" in str(refused.value)


def test_a_segment_without_ray_ends_its_attempt_with_the_fix(make_ray_spec, monkeypatch):
    monkeypatch.setattr(ray_trainer, "has_ray", lambda: False)
    plan = SegmentPlan(segment=0, attempt=1, capacity=Capacity.SPOT, deployment="segment/spot")
    started = ray_trainer.RayTrainer(Assignment(spec=make_ray_spec(), plan=plan))
    assert started.wait(60) == 1
    assert "pip install 'segue[ray]'" in str(started.ending.refusal)
    started.give_notice()
    started.kill()


def test_a_driver_that_ray_aborts_says_so():
    ended = ray_trainer._last_status(DriverStatus(has_started=True), -signal.SIGABRT)
    assert ended.code == -signal.SIGKILL
    assert ended.ending.in_words.endswith("as Ray does when the cluster's head restarts")
    assert ended.ending.had_machine


def test_a_cluster_that_does_not_answer_in_time_is_named(make_ray_spec):
    (found,) = ray_problems(make_ray_spec(), longest_seconds=0.2)
    assert found.what == "127.0.0.1:1 does not answer within 0.2 s"


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("happens", "what", "fix"),
    [
        ("raise ConnectionError('no head')", "127.0.0.1:1 does not answer", "ray start"),
        ("raise AttributeError('no such call')", "exited with code 1 (AttributeError: no such call)", REQUIREMENT),
        ("os.abort()", "was killed by signal 6", "try again"),
    ],
)
def test_only_a_cluster_that_does_not_answer_is_taken_for_one(make_ray_spec, tmp_path, monkeypatch, happens, what, fix):
    """What happens when the process that checks connects."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    text = f"import os, ray\n\ndef init(**_):\n    {happens}\n\nray.init = init\n"
    (tmp_path / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (found,) = ray_problems(make_ray_spec())
    assert found.what.endswith(what)
    assert fix in found.fix


def test_the_ray_that_a_fix_names_is_that_of_the_package():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert project["project"]["optional-dependencies"]["ray"] == [REQUIREMENT]


@pytest.mark.matrix
def test_threads_may_tell_a_status_at_the_same_time(tmp_path):
    folder, failed = StatusFolder(tmp_path), []

    def tell():
        for _ in range(300):
            try:
                folder.write(DriverStatus(has_started=True))
            except OSError as error:
                failed.append(error)

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert folder.read().has_started
    folder.remove()
    folder.write(DriverStatus())


def test_a_driver_that_never_had_room_leaves_an_attempt_without_a_machine():
    ending = DriverStatus(code=11, ended="it was ended before").ending
    assert (ending.had_machine, ending.refusal) == (False, None)
    refused = DriverStatus(code=2, problems=(("no node", "start one"),)).ending
    assert isinstance(refused.refusal, RaySetupError)
    assert "no node" in refused.in_words
