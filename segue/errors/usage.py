"""Defines the errors of requests that segue cannot carry out, or that would cost more than the budget."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal

from segue.errors.base import UsageError

_MOST_NAMES = 10

HopelessReason = Literal["deadline_too_near", "save_longer_than_life", "at_risk_longer_than_life", "nothing_left"]


COMMAND_LINE = "on the command line"
"""The value of `source` for options that were given on the command line."""


class SpecError(UsageError):
    """A run spec, or the command-line options that replace it, has invalid fields."""

    def __init__(self, *, source: str, problems: tuple[str, ...], fix: str | None = None) -> None:
        """If `fix` is None, the fix is to correct the fields or options."""
        self.source, self.problems = source, problems
        where = source if source == COMMAND_LINE else f"{source} is not valid"
        what = "options; --help describes them" if source == COMMAND_LINE else "fields"
        super().__init__(f"{where}: {'; '.join(problems).rstrip('.')}.", fix=fix or f"correct these {what}.")


class OptionError(SpecError):
    """Options of a command have invalid values, or cannot be used together."""

    def __init__(self, *problems: str) -> None:
        super().__init__(source=COMMAND_LINE, problems=problems)


class ClusterSetupError(UsageError):
    """The trainers of a run cannot run on a cluster, or cannot be started there from this machine."""

    cluster: str

    def __init__(self, *, problems: tuple[tuple[str, str], ...]) -> None:
        """Each item of `problems` is a problem and its fix."""
        self.problems = problems
        what = "; ".join(what for what, _ in problems)
        super().__init__(f"{self.cluster}: {what}.", fix="; ".join(dict.fromkeys(fix for _, fix in problems)) + ".")


class SlurmSetupError(ClusterSetupError):
    """The jobs of a run cannot run on this Slurm cluster, or cannot be submitted from this machine."""

    cluster = "slurm"


class RaySetupError(ClusterSetupError):
    """The trainers of a run cannot run on this Ray cluster, or cannot be started there from this machine."""

    cluster = "ray"


class DeadlinePassedError(UsageError):
    """The deadline has passed."""

    def __init__(self, *, deadline: str, now: str) -> None:
        self.deadline, self.now = deadline, now
        super().__init__(
            f"deadline: {deadline} has passed (it is {now}).", fix="give a later deadline, or no deadline."
        )


class SessionError(UsageError):
    """A program uses its session in a wrong way."""

    def __init__(self, *, what: str, fix: str) -> None:
        self.what = what
        super().__init__(what, fix=fix)


class ProgramError(UsageError):
    """The program that the command names does not exist."""

    def __init__(self, *, command: Sequence[str], why: str, fix: str) -> None:
        self.command, self.why = tuple(command), why
        super().__init__(f"program {shlex.join(command)!r}: {why}", fix=fix)


class RecipeError(UsageError):
    """The recipe cannot be imported, or builds something that a run cannot use."""

    PATH_FIX = (
        "give the recipe as package.module:function; the module must be importable from the current folder, and "
        "function(config) must return a segue.Recipe."
    )
    """The fix for a path that does not name a function."""

    def __init__(self, *, recipe: str, why: str, fix: str | None = None) -> None:
        self.recipe, self.why = recipe, why
        super().__init__(f"recipe {recipe!r}: {why}", fix=fix)


class DriftError(UsageError):
    """A run is resumed with a spec that differs from the run's original spec."""

    def __init__(self, *, run_id: str, fields: dict[str, tuple[str, str]]) -> None:
        self.run_id, self.fields = run_id, fields
        changes = "; ".join(f"{name} was {old}, now {new}" for name, (old, new) in fields.items())
        super().__init__(
            f"run {run_id} was started with another spec: {changes}.",
            fix="give a new run id, restore the old value, or pass --accept-drift to continue with the new value.",
        )


class RanksChangedError(UsageError):
    """A program is resumed with another number of ranks than in its newest checkpoint."""

    def __init__(self, *, run_id: str, step: int, before: int, now: int) -> None:
        self.run_id, self.step, self.before, self.now = run_id, step, before, now
        super().__init__(
            f"run {run_id}: {before} ranks made the checkpoint at step {step}, but the run has {now} ranks now. "
            "The state of a program's ranks cannot be divided among another number of ranks.",
            fix=f"continue with ranks = {before}, or start another run.",
        )


class CodeChangedError(UsageError):
    """A run is resumed, but its code has changed since the newest checkpoint."""

    def __init__(self, *, run_id: str, step: int, names: tuple[str, ...]) -> None:
        self.run_id, self.step, self.names = run_id, step, names
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        super().__init__(
            f"run {run_id}: the code has changed since the checkpoint at step {step}: {shown}. Nothing was started.",
            fix="undo the change, or pass --accept setup.code to resume with the changed code.",
        )


class RunNotFoundError(UsageError):
    """The store has no run with this id."""

    def __init__(self, *, run_id: str, store: str, known: tuple[str, ...] = ()) -> None:
        """`known` contains the existing run ids, of which the message lists the most similar ids."""
        self.run_id, self.store, self.known = run_id, store, known
        nearest = sorted(known, key=lambda name: -SequenceMatcher(None, run_id, name).ratio())[:_MOST_NAMES]
        more = f" and {len(known) - len(nearest)} more" if len(known) > len(nearest) else ""
        there = f" Runs there: {', '.join(nearest)}{more}." if known else " The store has no runs."
        super().__init__(f"no run {run_id!r} in {store}.{there}", fix="check the run id and --store.")


class RunOverError(UsageError):
    """A run that has ended cannot be stopped."""

    def __init__(self, *, run_id: str, action: str, step: int) -> None:
        self.run_id, self.action, self.step = run_id, action, step
        super().__init__(f"run {run_id} has already ended ({action} at step {step}).", fix="none needed.")


class ParentAliveError(UsageError):
    """The run already has a parent that is alive."""

    def __init__(self, *, run_id: str, host: str, flow_run_id: str | None) -> None:
        self.run_id, self.host, self.flow_run_id = run_id, host, flow_run_id
        which = f" (flow run {flow_run_id})" if flow_run_id else ""
        super().__init__(
            f"run {run_id} already has a parent on {host}{which}. This process changed nothing.",
            fix="watch that flow run, or give the new run another run id.",
        )


class MissingExtraError(UsageError):
    """An optional dependency is not installed."""

    def __init__(self, *, extra: str, needed_for: str) -> None:
        self.extra, self.needed_for = extra, needed_for
        super().__init__(f"{needed_for} needs the extra {extra!r}.", fix=f"pip install 'segue[{extra}]'")


class OrchestratorError(UsageError):
    """Prefect lacks an object or a setting that the run needs."""

    def __init__(self, *, what: str, fix: str) -> None:
        self.what = what
        super().__init__(what, fix=fix)


class QueueMissingError(OrchestratorError):
    """A deployment has no work queue, so no work pool can run it."""

    def __init__(self, *, deployment: str) -> None:
        self.deployment = deployment
        super().__init__(
            what=f"the deployment {deployment!r} has no work queue on the Prefect server, so no work pool can "
            "run it: it "
            "was deployed without a queue, or the queue was deleted.",
            fix="create the pool and the queue, then run `prefect --no-prompt deploy --all` again.",
        )


class OutputError(UsageError):
    """A requested file or folder cannot be written."""

    def __init__(self, *, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(
            f"{path} cannot be written ({why}).", fix="name another path, or correct the cause. No run was changed."
        )


class NoResumeError(UsageError):
    """The requested resume does not exist, or has no verdict."""

    def __init__(
        self, *, run_id: str, segment: int | None, attempt: int | None, there: tuple[tuple[int, int], ...]
    ) -> None:
        self.run_id, self.segment, self.attempt, self.there = run_id, segment, attempt, there
        asked = {"segment": segment, "attempt": attempt}
        which = " ".join(f"{name} {number}" for name, number in asked.items() if number is not None)
        others = ", ".join(f"{segment}.{attempt}" for segment, attempt in there)
        fix = f"choose one of {others} (segment.attempt)." if others else "none needed: the run has no other resume."
        whose = f"{which} of run {run_id}" if which else f"run {run_id}"
        super().__init__(f"{whose} has no resume with a verdict, so there is no resume point to show.", fix=fix)


class AuditImpossibleError(UsageError):
    """Steps of a run cannot be replayed on this machine, or cannot be compared with the log."""

    def __init__(self, *, run_id: str, why: str, fix: str) -> None:
        self.run_id, self.why = run_id, why
        super().__init__(f"run {run_id} cannot be audited: {why}.", fix=fix)


class TraceError(UsageError):
    """A trace of spot availability cannot be read, or is too short for the request."""

    def __init__(self, *, source: str, why: str, fix: str) -> None:
        self.source, self.why = source, why
        super().__init__(f"trace {source} {why}.", fix=fix)


class HopelessPlanError(UsageError):
    """A plan that no amount of spot capacity can complete. `reason` is the obstacle."""

    def __init__(self, *, reason: HopelessReason, why: str, fix: str) -> None:
        self.reason, self.why = reason, why
        super().__init__(f"this plan is hopeless: {why}", fix=fix)


class PriceSourceError(UsageError):
    """The current prices could not be read from their source."""

    def __init__(self, *, source: str, why: str, fix: str) -> None:
        self.source, self.why = source, why
        super().__init__(f"prices from {source!r}: {why}.", fix=fix)


class MetricsExportError(UsageError):
    """The metrics of this process cannot be exported."""

    def __init__(self, *, why: str, fix: str) -> None:
        self.why = why
        super().__init__(f"metrics: {why}.", fix=fix)


class BudgetError(UsageError):
    """A run would cost more than the rest of its budget."""

    def __init__(self, *, run_id: str, why: str, fix: str) -> None:
        self.run_id, self.why = run_id, why
        super().__init__(f"run {run_id}: {why}. Nothing was bought.", fix=fix)
