"""The doctor's checks of what is trained fail for recipes, data and programs that a run could not use."""

from __future__ import annotations

import hashlib
import os
import threading
from datetime import UTC, datetime, timedelta

import pytest

from segue.doctor import recipe, stores
from segue.doctor.check import Item, examine, ok
from segue.doctor.probe import TorchFacts, probe, understood
from segue.doctor.registry import all_items, without_server
from segue.doctor.run_rehearsal import rehearsal_spec, rehearse, why_not_here
from segue.doctor.save_time import judge_save
from segue.doctor.scratch import Scratch
from segue.doctor.subject import Subject
from segue.errors import SpecError
from segue.process import ProcessRef
from segue.spec import RunSpec, StoreSpec
from segue.verification.scratch_place import RunPlace
from tests.doctor.showing import bad, good, makes_fail
from tests.doctor.waiting import awaited


@pytest.fixture
def subject(make_spec):
    def make(**fields):
        spec = make_spec(**fields)
        return Subject(spec=spec, store=spec.store)

    return make


@makes_fail("spec.valid")
def test_a_run_spec_with_a_wrong_field_is_found_and_no_other_store_is_examined_for_it():
    with pytest.raises(SpecError) as wrong:
        RunSpec.parse({"run_id": "x", "recipe": "a:b", "steps": -1}, source="run.toml")
    examined = Subject(problem=wrong.value)
    first, *others = examine([*recipe.first_items(examined), *stores.items(examined), *recipe.items(examined)])
    bad("spec.valid", first, "fail", "run.toml is not valid: steps", "correct these fields")
    assert {check.outcome for check in others} == {"skipped"}


@makes_fail("spec.valid")
def test_a_secret_in_the_config_is_found(subject):
    examined = subject(config={"api_key": "sk-live-0123456789abcdef0123456789abcdef"})
    first, *_ = examine(recipe.first_items(examined))
    bad("spec.valid", first, "fail", "config.api_key")


@makes_fail("spec.start")
def test_a_deadline_that_has_passed_is_found(subject):
    examined = subject(deadline=datetime.now(UTC) - timedelta(hours=1))
    item = next(item for item in recipe.items(examined) if item.name == "spec.start")
    [_, _, start] = examine([*recipe.first_items(examined), *passed("store.put-if-absent"), item])
    bad("spec.start", start, "fail", "has passed", "give a later deadline")


@makes_fail("spec.start")
def test_a_run_that_was_started_with_another_spec_is_found(subject, open_log, make_spec):
    open_log(make_spec(seed=1))
    examined = subject(seed=2)
    item = next(item for item in recipe.items(examined) if item.name == "spec.start")
    [_, _, start] = examine([*recipe.first_items(examined), *passed("store.put-if-absent"), item])
    bad("spec.start", start, "fail", "seed was 1, now 2", "--accept-drift")


@pytest.mark.matrix
@makes_fail("recipe.imports")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("print('{}')\nraise ValueError('no GPU here')\n", "raised ValueError: no GPU here"),
        pytest.param("import os\nos._exit(9)\n", "ended with code 9", marks=pytest.mark.matrix),
    ],
)
def test_a_recipe_that_cannot_be_imported_is_found_in_a_child(subject, tmp_path, monkeypatch, text, words):
    (tmp_path / "broken_recipe.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    bad("recipe.imports", recipe.imports(subject(recipe="broken_recipe:build")), "fail", words)


NOISY = """
import os, subprocess, threading
open("helper", "w").write(str(subprocess.Popen(["sleep", "600"]).pid))
threading.Thread(target=threading.Event().wait).start()
os.write(1, b'{"reason": "no answer"}')
print('{not json}')
from segue.testing.recipes import tiny as build
"""


@pytest.mark.matrix
def test_a_recipe_that_prints_and_starts_helpers_at_import_is_sound_and_its_helpers_are_ended(
    subject, tmp_path, monkeypatch
):
    (tmp_path / "noisy_recipe.py").write_text(NOISY)
    monkeypatch.chdir(tmp_path)
    examined = subject(recipe="noisy_recipe:build")
    good(recipe.imports(examined))
    assert examined.probed.torch is not None
    helper = ProcessRef(int((tmp_path / "helper").read_text()))
    awaited(lambda: not helper.is_alive())


@pytest.mark.matrix
@makes_fail("recipe.imports")
def test_a_recipe_that_hangs_at_import_is_not_a_missing_torch(tmp_path, monkeypatch):
    reached = tmp_path / "reached"
    (tmp_path / "hanging_recipe.py").write_text(
        f"import pathlib, time\npathlib.Path({str(reached)!r}).touch()\ntime.sleep(600)\n"
    )
    monkeypatch.chdir(tmp_path)
    scratch, found = Scratch(), []
    asking = threading.Thread(
        target=lambda: found.append(probe("hanging_recipe:build", environ=os.environ, scratch=scratch))
    )
    asking.start()
    awaited(reached.exists)
    scratch.clear(None)  # As an interrupted doctor does.
    asking.join(60)
    [probed] = found
    assert probed.torch is not None
    bad("recipe.imports", probed.recipe, "fail", "importing the recipe failed", "its import must succeed and end")


def test_what_the_child_has_said_until_its_limit_counts():
    said = TorchFacts("3.11", "2.13.0", 0, False)
    hung = understood([said._asdict()], "it took more than 120 s", "a:build")
    assert (hung.torch, hung.recipe.reason) == (said, "importing the recipe failed: it took more than 120 s")
    silent = understood([], "it took more than 120 s", "a:build")
    assert silent.recipe.reason == "the recipe needs torch, which cannot be imported: it took more than 120 s"
    assert understood([], "ended", None).recipe is None


@makes_fail("recipe.imports")
def test_a_program_whose_script_is_missing_is_found(make_spec, tmp_path):
    spec = make_spec(recipe=None, program={"command": ["python", str(tmp_path / "none.py")]})
    item = next(item for item in recipe.items(Subject(spec=spec)) if item.name == "recipe.imports")
    [_, imports] = examine([*recipe.first_items(Subject(spec=spec)), item])
    bad("recipe.imports", imports, "fail", "none.py cannot be read")


@makes_fail("recipe.data")
def test_a_data_file_that_is_missing_or_has_another_size_is_found(subject, tmp_path):
    path = tmp_path / "part.parquet"
    path.write_bytes(b"12345")
    file = {"path": str(path), "sha256": hashlib.sha256(b"12345").hexdigest(), "size_bytes": 5}
    examined = subject(data={"files": [file]})
    good(recipe.data_files(examined))
    path.write_bytes(b"123456")
    bad("recipe.data", recipe.data_files(examined), "fail", "has 6 bytes, but the run spec says 5")
    path.unlink()
    item = next(item for item in recipe.items(examined) if item.name == "recipe.data")
    [_, missing] = examine([*recipe.first_items(examined), item])
    bad("recipe.data", missing, "fail", "it is missing")
    assert recipe.data_files(subject()).outcome == "skipped"


@pytest.mark.matrix
@makes_fail("recipe.rehearsal")
def test_a_recipe_that_raises_in_its_second_step_is_found_by_the_rehearsal(subject, tmp_path):
    examined = subject(config={"raise_at_step": 2}, checkpoints={"fast_folder": str(tmp_path / "new" / "fast")})
    examined.opened.check()
    result = rehearse(examined)
    bad("recipe.rehearsal", result, "fail", "ArithmeticError", "this recipe raises here", "segue drill")
    assert examined.rehearsed is None
    assert [path.name for path in (tmp_path / "store").iterdir()] == [".segue-store"]
    assert not (tmp_path / "new").exists()


SLURM = {"spot": "preemptible", "on_demand": "batch", "nodes": 2}
RAY = {"ranks_per_bundle": 2, "min_ranks": 2}


@pytest.mark.parametrize("cluster", [{"slurm": SLURM}, {"ray": RAY}])
def test_a_run_on_a_cluster_is_rehearsed_here_by_the_ranks_of_one_node(make_spec, cluster):
    rehearsed = rehearsal_spec(make_spec(ranks=4, **cluster), RunPlace(StoreSpec(url="x"), None))
    assert not rehearsed.trains_elsewhere
    assert rehearsed.ranks == 2


def test_what_needs_accelerators_that_only_the_cluster_has_is_not_rehearsed(make_spec):
    spec = make_spec(ranks=4, device="cuda", slurm=SLURM)
    assert "0 accelerators for 2 ranks of a node" in why_not_here(spec, accelerators=0)
    assert why_not_here(spec, accelerators=2) is None
    assert why_not_here(make_spec(device="cuda"), accelerators=0) is None


def test_the_checks_of_clusters_come_before_what_fails_without_one():
    order = [item.name for item in all_items(Subject(), without_server("none"))]
    assert max(order.index("slurm.jobs"), order.index("ray.trainers")) < order.index("recipe.imports")


@pytest.mark.matrix
@makes_fail("recipe.rehearsal")
def test_a_rehearsal_that_takes_too_long_is_ended_and_its_trainer_killed(subject):
    examined = subject(config={"pause_seconds": 600})
    bad("recipe.rehearsal", rehearse(examined, limit_seconds=8), "fail", "took more than 8 s")


@makes_fail("recipe.save-time")
@pytest.mark.parametrize(
    ("save", "step", "outcome"), [(10, 1, None), (10, 15, "warn"), (18, 0.1, "warn"), (26, 0.1, "fail")]
)
def test_a_save_that_does_not_fit_the_notice_is_found(save, step, outcome):
    result = judge_save(save, step_seconds=step, notice_seconds=25, where="in the rehearsal")
    if outcome is None:
        good(result)
        result, outcome = judge_save(30, step_seconds=1, notice_seconds=25, where="here"), "fail"
    bad("recipe.save-time", result, outcome, "a notice gives 25 s", "grace_seconds")


@pytest.mark.matrix
@makes_fail("recipe.save-time")
def test_a_save_that_takes_longer_than_the_grace_period_is_found_by_the_rehearsal(subject, tmp_path):
    examined = subject(grace_seconds=0.001)
    checks = {check.name: check for check in examine(all_items(examined, without_server("none")))}
    assert checks["recipe.rehearsal"].outcome == "ok", checks["recipe.rehearsal"]
    assert "of state saved in" in checks["recipe.rehearsal"].reason
    bad("recipe.save-time", checks["recipe.save-time"], "fail", "measured in the rehearsal", "no last save can be made")
    assert checks["machine.memory"].outcome == "ok"
    # Nothing of the rehearsal stays in the run's store.
    assert [path.name for path in (tmp_path / "store").iterdir()] == [".segue-store"]


def passed(*names):
    return [Item(name, lambda: ok("")) for name in names]
