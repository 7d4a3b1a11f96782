"""Something asked for cannot be done as asked."""

from __future__ import annotations

from typing import Literal

from segue.errors.base import UsageError

HopelessReason = Literal["deadline_too_near", "save_longer_than_life", "at_risk_longer_than_life", "nothing_left"]


COMMAND_LINE = "on the command line"
"""The source of what was not read from a file."""


class SpecError(UsageError):
    """A run spec, or what is asked for in its place, has wrong fields."""

    def __init__(self, *, source: str, problems: tuple[str, ...]) -> None:
        self.source, self.problems = source, problems
        where = source if source == COMMAND_LINE else f"{source} is not a valid run spec"
        super().__init__(f"{where}: " + "; ".join(problems))


class DeadlinePassedError(UsageError):
    """The deadline lies before now."""

    def __init__(self, *, deadline: str, now: str) -> None:
        self.deadline, self.now = deadline, now
        super().__init__(f"deadline: {deadline} has passed (it is {now}). Give a later one, or none to run without.")


class RecipeError(UsageError):
    """The recipe cannot be imported, or does not build what a run needs."""

    _FIX = (
        "Give it as package.module:function, importable from the current folder, "
        "where function(config) returns a segue.Recipe."
    )

    def __init__(self, *, recipe: str, why: str, fix: str = _FIX) -> None:
        self.recipe, self.why, self.fix = recipe, why, fix
        super().__init__(f"recipe {recipe!r}: {why} {fix}")


class DriftError(UsageError):
    """A run is being continued with something other than what it was started with."""

    def __init__(self, *, run_id: str, fields: dict[str, tuple[str, str]]) -> None:
        self.run_id, self.fields = run_id, fields
        changes = "; ".join(f"{name} was {old}, now {new}" for name, (old, new) in fields.items())
        super().__init__(
            f"run {run_id} was started with another spec: {changes}. Give it a new run id, put the old value back, "
            "or pass --accept-drift to go on with the new one."
        )


class RunNotFoundError(UsageError):
    """The store holds no such run."""

    def __init__(self, *, run_id: str, store: str, known: tuple[str, ...] = ()) -> None:
        self.run_id, self.store, self.known = run_id, store, known
        there = f" Runs there: {', '.join(known)}." if known else ""
        super().__init__(f"no run {run_id!r} in {store}.{there} Check the run id and --store.")


class RunOverError(UsageError):
    """A run that has ended cannot be stopped."""

    def __init__(self, *, run_id: str, action: str, step: int) -> None:
        self.run_id, self.action, self.step = run_id, action, step
        super().__init__(f"run {run_id} has ended already ({action} at step {step}). Fix: none needed.")


class MissingExtraError(UsageError):
    """An optional dependency is not installed."""

    def __init__(self, *, extra: str, needed_for: str) -> None:
        self.extra, self.needed_for = extra, needed_for
        super().__init__(f"{needed_for} needs the extra {extra!r}: pip install 'segue[{extra}]'.")


class CheckoutNeededError(UsageError):
    """The command needs a folder that is in the repository and not in the package."""

    def __init__(self, *, command: str, folder: str) -> None:
        self.command, self.folder = command, folder
        super().__init__(
            f"`segue {command}` needs the folder {folder}/, which the installed package does not have. "
            f"Fix: clone segue's repository and run `segue {command}` there."
        )


class OrchestratorError(UsageError):
    """Prefect does not offer what the run needs."""

    def __init__(self, *, what: str, fix: str) -> None:
        self.what, self.fix = what, fix
        super().__init__(f"{what} {fix}")


class OutputError(UsageError):
    """A file or folder that was asked for cannot be written."""

    def __init__(self, *, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{path} cannot be written ({why}). Name another place, or fix that. The run was only read.")


class NoResumeError(UsageError):
    """There is no resume to show."""

    def __init__(
        self, *, run_id: str, segment: int | None, attempt: int | None, there: tuple[tuple[int, int], ...]
    ) -> None:
        self.run_id, self.segment, self.attempt, self.there = run_id, segment, attempt, there
        asked = {"segment": segment, "attempt": attempt}
        which = " ".join(f"{name} {number}" for name, number in asked.items() if number is not None)
        others = ", ".join(f"{segment}.{attempt}" for segment, attempt in there)
        fix = f"Those that are there, as segment.attempt: {others}." if others else "There is no other either."
        whose = f"{which} of run {run_id}" if which else f"run {run_id}"
        super().__init__(f"{whose} has no resume that was judged, so there is no resume point to draw. {fix}")


class TraceError(UsageError):
    """What should be a trace of spot availability is none, or too short for what is asked."""

    def __init__(self, *, source: str, why: str, fix: str) -> None:
        self.source, self.why, self.fix = source, why, fix
        super().__init__(f"trace {source} {why}. {fix}")


class HopelessPlanError(UsageError):
    """A plan cannot work whatever spot does; `reason` says in one word why not."""

    def __init__(self, *, reason: HopelessReason, why: str, fix: str) -> None:
        self.reason, self.why, self.fix = reason, why, fix
        super().__init__(f"this plan is hopeless: {why} {fix}")
