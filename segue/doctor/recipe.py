"""Checks the recipe or program: the start of the run, imports, data files, a rehearsal, and the duration of a save."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from segue.controller.steps import check_start
from segue.data.files import file_system, is_remote, readable
from segue.doctor.check import Item, Result, fail, ok, refused, skipped
from segue.doctor.run_rehearsal import rehearse
from segue.doctor.save_time import judge_save, notice_seconds
from segue.doctor.subject import Subject
from segue.errors import DataUnreadableError
from segue.hosting import require_program
from segue.spec import DataFile, DataSpec
from segue.units import size

_NO_RECIPE = "the run spec names no recipe; add the recipe to the command, as in `segue doctor run.toml train:build`"


def first_items(subject: Subject) -> list[Item]:
    """Return the checks that need no other check."""
    return [Item("spec.valid", partial(is_valid, subject))]


def items(subject: Subject) -> list[Item]:
    """Return the checks of the recipe or program. The doctor runs them after the checks of the store."""
    valid, stored = "spec.valid", "store.put-if-absent"
    return [
        Item("spec.start", partial(can_begin, subject), (valid, stored)),
        Item("recipe.imports", partial(imports, subject), (valid,), 180.0),
        Item("recipe.data", partial(data_files, subject), (valid,)),
        Item(
            "recipe.rehearsal",
            partial(rehearse, subject),
            (valid, stored, "store.delete", "store.list", "recipe.imports"),
            None,
        ),
        Item("recipe.save-time", partial(save_time, subject), (valid, "store.read", "store.list")),
    ]


def is_valid(subject: Subject) -> Result:
    """Check that the run spec is valid and contains no credentials."""
    if subject.problem is not None:
        return refused(subject.problem)
    if subject.spec is None:
        return skipped(subject.why_no_spec)
    subject.spec.require_no_secrets()
    return ok(f"run {subject.spec.run_id}, {subject.spec.steps} steps")


def can_begin(subject: Subject) -> Result:
    """Check that the run can begin or resume with this spec, without writing a record.

    If the run cannot begin, raise the error that explains the reason.
    """
    assert subject.spec is not None
    if not subject.trains:
        return skipped(_NO_RECIPE)
    check_start(subject.spec, clock=subject.clock)
    step = subject.history.committed_step
    return ok(f"it is resumed at step {step}" if step else "it begins at step 0")


def imports(subject: Subject) -> Result:
    """Check that the recipe can be imported from this folder, or that the program's script exists."""
    assert subject.spec is not None
    if not subject.trains:
        return skipped(_NO_RECIPE)
    if subject.spec.program is not None:
        require_program(subject.spec.program.command)
        return ok(f"{subject.spec.workload} is there")
    found = subject.probed.recipe
    return found if found is not None else skipped("the run trains no recipe")


def data_files(subject: Subject) -> Result:
    """Check that every data file has the size in the run spec. Attempts check the hashes before they train."""
    assert subject.spec is not None
    data = subject.spec.data
    if data is None:
        return skipped("the run spec names no data files")
    for file in data.files:
        found = size_of(file, data)
        if found != file.size_bytes:
            return fail(
                f"{file.path} has {found} bytes, but the run spec says {file.size_bytes}",
                fix="restore the file, or start a new run with the changed file (`segue data files` describes it).",
            )
    total = sum(file.size_bytes for file in data.files)
    return ok(f"{len(data.files)} files with {size(total)} are there; their hashes are checked before each segment")


def size_of(file: DataFile, data: DataSpec) -> int:
    """Return the size of a local or remote file in bytes.

    Raises:
        DataUnreadableError: the file is missing, or cannot be read.
    """
    with readable(file.path):
        if is_remote(file.path):
            found = file_system(file.path, data).size(file.path)
            if found is None:
                raise DataUnreadableError(path=file.path, why="its size is not known")
            return int(found)
        path = Path(file.path.removeprefix("file://"))
        with path.open("rb"):  # It can be read, not only seen.
            return path.stat().st_size


def save_time(subject: Subject) -> Result:
    """Check that a save is shorter than the time between a notice and the kill."""
    assert subject.spec is not None
    known = subject.save_seconds
    if known is None:
        return skipped("no save was measured: the run has no attempt with a save, and the rehearsal was not made")
    seconds, where = known
    step = subject.rehearsed.step_seconds if subject.rehearsed is not None else 0.0
    given = notice_seconds(subject.spec, platform=subject.platform, kept_seconds=subject.pool_grace_seconds)
    return judge_save(seconds, step_seconds=step, notice_seconds=given, where=where)
