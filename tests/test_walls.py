"""Who may import whom, what an import may cost, and where the time is read."""

from __future__ import annotations

import ast
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support import rooms

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "boto3", "prefect", "pandas", "pyarrow", "great_expectations", "numpy")
READS_TIME = {"time.time", "time.monotonic", "time.time_ns", "time.monotonic_ns", "time.perf_counter"}
READS_TIME |= {f"{owner}.{name}" for owner in ("datetime", "datetime.datetime") for name in ("now", "utcnow", "today")}
READS_TIME |= {"date.today", "datetime.date.today"}
IMPORTS_WEIGHTS, IMPORTS_DCP = "segue/interop/weights_file.py", "segue/interop/dcp_folder.py"
RUNS_CODE = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


@cache
def sources(folder: str) -> dict[str, ast.Module]:
    found = {p.relative_to(ROOT).as_posix(): rooms.tree_of(p) for p in sorted((ROOT / folder).rglob("*.py"))}
    assert found, f"there is no code in {folder}"
    return found


def imports(tree: ast.Module) -> Iterator[str]:
    """Every module a file names in an import, at its top or inside a function; `from a import b` gives a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports would be missed here"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def names(tree: ast.Module) -> Iterator[str]:
    """Every dotted name a file uses: `datetime.now`, `torch.load`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            yield ast.unparse(node)


def is_in(module: str, packages: tuple[str, ...] | set[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def offenders(folder: str, packages: tuple[str, ...] | set[str], *, but: tuple[str, ...] = ()) -> list[str]:
    return [
        f"{path} imports {module}"
        for path, tree in sources(folder).items()
        if not path.startswith(but)
        for module in imports(tree)
        if is_in(module, packages)
    ]


def test_importing_segue_takes_less_than_a_third_of_a_second_of_the_processor():
    # Of the processor, not of the clock: a busy machine must not fail a test.
    measure = "import time; t = time.process_time(); import segue; print(time.process_time() - t)"
    took = [float(subprocess.check_output([sys.executable, "-c", measure])) for _ in range(5)]
    assert statistics.median(took) < 0.3


@pytest.mark.parametrize(
    "module",
    [
        "segue",
        "segue.spec",
        "segue.controller.steps",
        "segue.controller.waiting.wait",
        "segue.integrations.tracking",
        "segue.cli.main",
    ],
)
def test_what_steers_a_run_loads_nothing_heavy(module):
    look = f"import json, sys, {module}; print(json.dumps(list(sys.modules)))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", look]))
    assert [name for name in HEAVY if name in loaded] == []


def test_a_parent_starts_without_what_only_its_reports_and_trackers_need():
    look = "import json, sys, segue.flows.train; print(json.dumps(list(sys.modules)))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", look]))
    assert [name for name in HEAVY if name in loaded and name != "prefect"] == []


def test_the_writer_process_of_every_attempt_starts_with_next_to_nothing():
    look = "import json, sys, segue.checkpoints.saving.writer_process; print(json.dumps(list(sys.modules)))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", look]))
    assert [name for name in (*HEAVY, "numpy", "pydantic") if name in loaded] == []


def test_every_public_name_can_be_loaded():
    look = "import segue; [getattr(segue, name) for name in segue.__all__]"
    subprocess.run([sys.executable, "-c", look], check=True)


def test_rooms_import_only_rooms_below_them():
    assert rooms.upward() == []


def test_no_room_can_be_reached_from_itself():
    assert rooms.cycles() == []


def test_no_file_can_be_reached_from_itself():
    assert rooms.circles_of_files() == []


def test_every_folder_is_a_room_of_the_table():
    table = {room for line in rooms.ROOMS for room in line} | set(rooms.APART)
    assert sorted(rooms.packages() - table) == []


def test_every_module_lies_in_a_room_of_the_table():
    table = {room for line in rooms.ROOMS for room in line} | set(rooms.APART)
    strangers = [name for name in rooms.modules() if name != "segue" and rooms.room_of(name) not in table]
    assert strangers == []
    empty = [room for room in table if not any(rooms.room_of(name) == room for name in rooms.modules())]
    assert empty == []


def test_an_arrow_that_goes_up_would_be_found(monkeypatch):
    monkeypatch.setattr(
        rooms, "arrows", lambda: iter([("segue.spec", "segue.policy.decide"), ("segue.policy.decide", "segue.spec")])
    )
    assert rooms.upward() == ["segue.spec imports segue.policy.decide"]
    assert rooms.cycles() == [("policy", "spec")]
    assert rooms.circles_of_files() == [("segue.policy.decide", "segue.spec")]


def test_contributing_names_every_room():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    top = {room for line in rooms.ROOMS for room in line if "." not in room} | set(rooms.APART)
    missing = [room for room in sorted(top) if f"{room}/`" not in text and f"{room}.py`" not in text]
    assert missing == []


def test_a_folder_holds_about_a_dozen_files_at_most():
    folders = {
        path.parent for folder in (*rooms.HOMES, "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")
    }
    full = {folder.relative_to(ROOT).as_posix(): len(list(folder.glob("*.py"))) for folder in folders}
    assert {name: count for name, count in full.items() if count > 20} == {}


def test_only_the_pack_and_its_commands_import_prefect():
    pack = (
        "segue/prefect/",
        "segue/cli/run.py",
        "segue/cli/recover.py",
        "segue/cli/server.py",
        "segue/cli/retraining/retrain.py",
    )
    assert offenders("segue", ("prefect",), but=pack) == []


def test_tasks_are_tasks():
    public = {
        f"{path}: {node.name}": [ast.unparse(each) for each in node.decorator_list]
        for path, tree in sources("tasks").items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }
    assert len(public) >= 18
    assert [name for name, decorators in public.items() if not any(d.startswith("task") for d in decorators)] == []


def test_nothing_shipped_imports_tests_examples_or_benchmarks():
    shipped = ("segue", "tasks", "flows", "deployments")
    assert [o for folder in shipped for o in offenders(folder, ("tests", "examples", "benchmarks"))] == []


def test_policies_have_no_clock_no_chance_and_no_io():
    banned = ("time", "os", "random", "secrets", "socket", "pathlib", "io", "shutil", "subprocess", "threading")
    banned += ("segue.clock", "segue.stores", "segue.runlog.log", "segue.runlog.keys")
    # Traces are read for simulations; nothing that decides in a run imports their file.
    assert offenders("segue/policy", banned, but=("segue/simulation/traces.py",)) == []
    used = {name for tree in sources("segue/policy").values() for name in names(tree)}
    assert used.isdisjoint(READS_TIME | {"open", "print", "input"})


def test_only_the_clock_reads_the_time():
    found = [
        f"{path}: {name}"
        for path, tree in sources("segue").items()
        # Threads that wait for a server wait for it in real time, whatever a test says that the time is.
        if path != "segue/clock.py" and not path.startswith("segue/prefect/")
        for name in names(tree)
        if name in READS_TIME
    ]
    assert found == []


def test_nobody_takes_a_clock_reading_out_of_its_module():
    # `from time import monotonic` would slip past the test above.
    taken = ("time.time", "time.monotonic", "time.perf_counter", "time.time_ns", "time.monotonic_ns")
    assert offenders("segue", set(taken)) == []


def test_only_what_trains_saves_or_replays_imports_torch():
    rooms = (
        "trainer",
        "integrations",
        "checkpoints",
        "continuity",
        "interop",
        "data",
        "doctor/probe.py",
        "launch",
        "recipe.py",
        "recipe_check.py",
        "hosting.py",
        "testing",
        "retraining/versions",
    )
    assert offenders("segue", ("torch",), but=tuple(f"segue/{room}" for room in rooms)) == []


@pytest.mark.parametrize("folder", ["segue", "tasks", "flows"])
def test_nothing_prints_past_the_console(folder):
    calls = (node for tree in sources(folder).values() for node in ast.walk(tree) if isinstance(node, ast.Call))
    assert [node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id == "print"] == []


def test_no_bytes_of_a_bucket_can_become_code():
    assert offenders("segue", RUNS_CODE, but=(IMPORTS_DCP,)) == []
    used = {(path, name) for path, tree in sources("segue").items() for name in names(tree)}
    banned = {"torch.load", "torch.save", "eval", "exec", "np.load", "numpy.load"}
    may = {
        ("segue/interop/export_files.py", "torch.save"),  # An export writes .pt files.
        # A person's own file or folder, named on the command line; never one of a store.
        (IMPORTS_WEIGHTS, "torch.load"),
        (IMPORTS_DCP, "torch.load"),
    }
    assert [(path, name) for path, name in used - may if name in banned] == []


@pytest.mark.parametrize("path", [IMPORTS_WEIGHTS, IMPORTS_DCP])
def test_a_file_that_loads_with_torch_lets_it_run_no_code(path):
    tree = sources("segue")[path]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"]
    safely = [ast.unparse(keyword) for call in calls for keyword in call.keywords if keyword.arg == "weights_only"]
    assert safely == ["weights_only=True"] * len(calls)
    assert len(calls) == list(names(tree)).count("torch.load") == 1  # Nor is it called by another name.
    assert offenders("segue", {"torch.load", "torch.serialization.load"}) == []


def test_the_file_that_unpickles_an_index_knows_every_name_that_it_builds():
    used = {name for name in names(sources("segue")[IMPORTS_DCP]) if name.startswith("pickle.")}
    assert used == {"pickle.Unpickler", "pickle.UnpicklingError"}  # The class is replaced by one that refuses others.
