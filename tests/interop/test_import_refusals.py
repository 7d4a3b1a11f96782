"""What cannot be imported is refused before the run is touched, and nothing in a file is run."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from segue.clock import SystemClock
from segue.controller.steps import decide_next
from segue.errors import (
    RecipeError,
    RunBegunError,
    SpecError,
    StoreUnreachableError,
    UnsupportedStateError,
    WeightsFileError,
    WeightsMismatchError,
)
from segue.interop.import_weights import import_weights
from segue.runlog.history import read_history
from segue.spec import RunSpec
from segue.testing.recipes import tiny


class Code:
    """An object whose reading runs a command."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[Callable[..., int], tuple[str]]:
        return os.system, (self._command,)


pytestmark = pytest.mark.usefixtures("one_thread")


def store_of(spec: RunSpec) -> Path:
    return Path(spec.store.url)


def write_text(path: Path, state: dict) -> None:
    path.write_text("import torch")


def write_half(path: Path, state: dict) -> None:
    torch.save(state, path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def write_code(path: Path, state: dict) -> None:
    torch.save(state | {"0.weight": Code("touch ran")}, path)


def write_old_code(path: Path, state: dict) -> None:
    torch.save(Code("touch ran"), path, _use_new_zipfile_serialization=False)


def write_module(path: Path, state: dict) -> None:
    torch.save(tiny({}).model, path)


def write_training(path: Path, state: dict) -> None:
    torch.save({"epoch": 3, "model": state, "optimizer": {"state": {}}}, path)


def write_list(path: Path, state: dict) -> None:
    torch.save(list(state.values()), path)


def write_nothing(path: Path, state: dict) -> None:
    torch.save(collections.OrderedDict(), path)


@pytest.mark.parametrize(
    ("name", "write", "said"),
    [
        ("a.pt", Path.mkdir, "Fix: name the file in this folder"),
        ("a.pt", lambda path, state: path.touch(), "is empty. Nothing was imported"),
        ("a.pt", lambda path, state: None, "cannot be read (No such file or directory). Nothing was imported"),
        ("a.pt", write_text, "is damaged, or is not from torch (UnpicklingError)"),
        ("a.pt", write_half, "is damaged, or is not from torch (RuntimeError)"),
        ("a.safetensors", write_half, "is not a whole safetensors file ("),
        (
            "a.pt",
            write_code,
            "names Python objects, whose code would have to run to read the file: posix.system. None was run.",
        ),
        ("a.pt", write_old_code, "holds more than tensors and plain data, is damaged, or is not from torch"),
        ("a.pt", write_module, "torch.nn.modules.linear.Linear"),
        (
            "a.pt",
            write_training,
            "'epoch', 'model', 'optimizer' in it are not tensors. Nothing was imported",
        ),
        ("a.pt", write_list, "Fix: save the model's state_dict() alone"),
        ("a.pt", write_nothing, "holds no tensors."),
    ],
)
def test_a_file_without_a_state_dict_is_refused_and_nothing_in_it_is_run(
    make_spec, state, tmp_path, monkeypatch, name, write, said
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / name, state) if write is not Path.mkdir else (tmp_path / name).mkdir()
    with pytest.raises(WeightsFileError) as refused:
        import_weights(make_spec(), tmp_path / name)
    assert said in str(refused.value)
    assert refused.value.exit_code == 2
    assert "weights_only" not in str(refused.value)
    assert not (tmp_path / "ran").exists()
    assert not store_of(make_spec()).exists()


@pytest.mark.parametrize("is_partial", [False, True])
def test_names_and_shapes_that_do_not_fit_are_all_named_at_once(make_spec, weights, state, is_partial):
    wrong = {name: value for name, value in state.items() if name != "4.bias"}
    wrong |= {"0.weight": torch.zeros(3, 8), "head.weight": torch.zeros(1), "4.weight": torch.zeros(1, 16).cfloat()}
    torch.save(wrong, weights)
    with pytest.raises(WeightsMismatchError) as refused:
        import_weights(make_spec(), weights, partial=is_partial)
    error = refused.value
    assert (error.missing, error.unexpected) == (("4.bias",), ("head.weight",))
    assert error.misshapen == (
        "0.weight: float32[3, 8] in the file, float32[16, 8] in the model",
        "4.weight: complex64[1, 16] in the file, float32[1, 16] in the model",
    )
    assert "only the model has 1 (4.bias); only the file has 1 (head.weight); file and model disagree on 2" in str(
        error
    )
    assert "--partial" not in str(error)
    assert not store_of(make_spec()).exists()


def test_what_only_lacks_some_is_told_of_partial(make_spec, weights, state):
    safetensors.torch.save_file({"0.weight": state["0.weight"]}, weights.with_suffix(".safetensors"))
    with pytest.raises(
        WeightsMismatchError, match=r"only the model has 7 \(.* and 3 more\)\..* Fix: use --partial to leave these"
    ):
        import_weights(make_spec(), weights.with_suffix(".safetensors"))


@pytest.mark.parametrize(
    ("fields", "step", "error", "said"),
    [
        ({"recipe": "tests.recipes.imported:raises"}, 0, RecipeError, "raised LookupError: no such table."),
        (
            {"recipe": "tests.recipes.imported:no_recipe"},
            0,
            RecipeError,
            "returned a dict, not a segue.Recipe.",
        ),
        ({"recipe": "tests.recipes.imported:secretive"}, 0, UnsupportedStateError, "extra.secret.it: cannot store"),
        ({}, 40, SpecError, "step: 40 is not before the goal of 40 steps"),
        ({"store": {"url": "file/store"}}, 0, StoreUnreachableError, "the folder cannot be created"),
    ],
)
def test_a_run_that_has_no_first_state_is_refused(make_spec, weights, tmp_path, monkeypatch, fields, step, error, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(error, match=said):
        import_weights(make_spec(**fields), weights, step=step)
    assert not store_of(make_spec()).exists()


def test_a_run_with_a_checkpoint_is_refused_by_that_checkpoint_and_left_as_it_is(make_spec, weights):
    spec = make_spec()
    import_weights(spec, weights)
    before = {path: path.read_bytes() for path in store_of(spec).rglob("*.json")}
    with pytest.raises(
        RunBegunError, match=r"run tiny has already started: its attempt seg000-a1-e1-[0-9a-f]{8} committed .* step 0"
    ):
        import_weights(spec, weights)
    assert {path: path.read_bytes() for path in store_of(spec).rglob("*.json")} == before


def test_a_run_whose_first_attempt_may_be_at_work_is_refused(make_spec, open_log, weights):
    spec = make_spec()
    decide_next(open_log(spec), spec, clock=SystemClock())
    with pytest.raises(RunBegunError, match="segment 0 attempt 1 on spot may still be running"):
        import_weights(spec, weights)


def test_a_record_that_cannot_be_read_may_be_a_checkpoint(make_spec, open_log, weights):
    spec = make_spec()
    open_log(spec)
    (store_of(spec) / "tiny" / "log" / "00000000.json").write_bytes(b"garbage")
    with pytest.raises(RunBegunError, match=r"tiny/log/00000000\.json may be a checkpoint and cannot be read"):
        import_weights(spec, weights)


@pytest.mark.matrix
def test_a_run_that_kept_nothing_can_still_be_begun_with_weights_and_another_config(
    fork_server, make_spec, open_log, weights
):
    before = make_spec(config={"raise_at_step": 1})
    fork_server.run_attempt(open_log(before), before)
    import_weights(make_spec(), weights)
    log = open_log(make_spec())
    assert [(a.claim.segment, a.claim.attempt) for a in read_history(log).attempts] == [(0, 1), (0, 2)]
    fork_server.run_to_the_end(log, make_spec())
    assert read_history(log).committed_step == 40
