"""Errors of an attempt: broken resumes, bad steps, failures of other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from segue.errors.base import SegueError

if TYPE_CHECKING:
    from segue.records import Anomaly


class BrokenResumeError(SegueError):
    """A resume did not continue the run."""

    exit_code = 3

    def __init__(self, *, component: str, detail: str, fix: str = "") -> None:
        # The finding of a lost component begins with the same words.
        self.component, self.detail = component, detail.removeprefix(f"{component} was not restored: ").rstrip(".")
        is_lost = detail.startswith(f"{component} was not restored")
        what = f"{component} was not restored ({self.detail})" if is_lost else f"{component}: {self.detail}"
        super().__init__(
            f"Resume verification failed: {what}. No checkpoint was written after the resume.",
            fix=f"{fix or f'correct {component}'}; then start the run again.",
        )


class RehearsalError(SegueError):
    """A fresh process could not continue the run from its first checkpoint."""

    exit_code = 3

    def __init__(self, *, sentence: str, fix: str = "") -> None:
        self.sentence = sentence
        super().__init__(
            "Resume rehearsal failed: a fresh process restored the first checkpoint but did not reproduce the next "
            f"steps ({sentence.rstrip('.')}).",
            fix=f'{fix or "add the object to Recipe.extra"}; start a new run, or set continuity.rehearsal = "warn".',
        )


class StructureChangedError(SegueError):
    """The model or an optimizer is built differently than a resume would build it; no checkpoint holds the change."""

    def __init__(self, *, changes: tuple[str, ...], step: int, saved_step: int) -> None:
        self.changes, self.step, self.saved_step = changes, step, saved_step
        more = f"; and {len(changes) - 3} more" if len(changes) > 3 else ""
        kept = f"the run keeps its checkpoints up to step {saved_step}" if saved_step else "there was no checkpoint yet"
        super().__init__(
            f"The structure changed during training, and a resume would build it without the change: "
            f"{'; '.join(changes[:3])}{more}. Nothing was saved at step {step}; {kept}.",
            fix="build the structure of the whole run from the start (in `build`, or before `run.track`), and freeze "
            "parameters by requires_grad_(False), which is saved; or end the run before the change and start a new one "
            "from its weights (segue checkpoints export and import).",
        )


class NonDeterministicOperationError(SegueError):
    """The run asks for deterministic kernels, and an operation of the recipe has none."""

    def __init__(self, *, operation: str, where: str) -> None:
        self.operation, self.where = operation, where
        place = f" at {where}" if where else ""
        super().__init__(
            f"{operation}{place} has no deterministic kernel, and only such kernels are allowed (deterministic = true "
            "in the run spec, or torch.use_deterministic_algorithms in the recipe).",
            fix="replace the operation, or remove deterministic: resumes are then compared within the measured noise.",
        )


class PoisonedStepError(SegueError):
    """A step had anomalous numbers; the state after it is not kept."""

    def __init__(self, *, anomaly: Anomaly) -> None:
        self.anomaly = anomaly
        super().__init__(
            f"{anomaly.sentence}. Nothing of that step was kept: the run goes back to its newest checkpoint and "
            "repeats it.",
            fix="if it happens again, check these samples, the learning rate and the number format.",
        )


class RankFailedError(SegueError):
    """The recipe raised on another rank."""

    def __init__(self, *, rank: int, type_name: str, message: str, traceback: str, is_transient: bool = False) -> None:
        self.rank, self.type_name, self.message, self.traceback = rank, type_name, message, traceback
        self.is_transient = is_transient
        super().__init__(
            f"rank {rank} raised {type_name}: {message}.", fix="correct the recipe; its traceback follows."
        )


class RankMismatchError(SegueError):
    """Two ranks hold different state where it must be the same."""

    def __init__(self, *, rank: int, step: int) -> None:
        self.rank, self.step = rank, step
        super().__init__(
            f"rank {rank} and rank 0 have parameters or optimizer state of different names or sizes at step {step}, "
            "so what they stored is not the whole state. Nothing was committed.",
            fix="build the same model and optimizer on every rank.",
        )


class RankDriftError(SegueError):
    """The ranks no longer train the same model."""

    def __init__(self, *, rank: int, channel: str, here: float, leads: float) -> None:
        self.rank, self.channel, self.here, self.leads = rank, channel, here, leads
        super().__init__(
            f"the {channel} norm of rank {rank} is {here!r}, that of rank 0 {leads!r}: the ranks train different "
            "models.",
            fix="let the loss call the model it is given, not its .module, and shard all of a model or none of it.",
        )


class HungRankError(SegueError):
    """A rank is alive and did not reach the point where the others wait for it."""

    def __init__(self, *, ranks: tuple[int, ...], waited_seconds: float, step: int) -> None:
        self.ranks, self.waited_seconds, self.step = ranks, waited_seconds, step
        names = ", ".join(map(str, ranks))
        super().__init__(
            f"rank {names} hung: the others waited {waited_seconds:.0f} s for it after step {step}.",
            fix="look for a loop or a lock that depends on the rank; if its steps take that long, set a larger "
            "liveness.rank_seconds.",
        )


class RankLostError(SegueError):
    """A rank ended without a report, or because of its store or its machine; the recipe did not fail."""

    def __init__(self, *, ranks: tuple[int, ...], why: str) -> None:
        self.ranks, self.why = ranks, why
        super().__init__(
            f"rank {', '.join(map(str, ranks))} was lost: {why}. The run continues from its last commit.",
            fix="none needed.",
        )


class MetadataServiceError(SegueError):
    """The metadata service of a cloud machine could not be read; its notices are not seen until it can."""

    def __init__(self, *, provider: str, url: str, why: str) -> None:
        self.provider, self.url, self.why = provider, url, why
        super().__init__(
            f"the metadata service of {provider} at {url} could not be read: {why.rstrip('.')}. It is asked again.",
            fix="let this process reach that address (in a container on AWS: a hop limit of 2), or leave the provider "
            "out of `notices`.",
        )


class LossError(SegueError):
    """The recipe's loss function returned something from which no step can be made."""

    def __init__(
        self, *, loss: str, found: str, fix: str, needed: str = "a step needs a scalar tensor with a gradient"
    ) -> None:
        self.loss, self.found = loss, found
        super().__init__(f"{loss} returned {found}; {needed}.", fix=fix)


class DrillFailedError(SegueError):
    """A drill could not be made: the recipe or program does not reach its goal even without a kill.

    `traceback` is the traceback of the user's code, if that code raised.
    """

    def __init__(
        self,
        *,
        workload: str,
        why: str,
        fix: str = "correct that, then run the drill again.",
        traceback: str = "",
    ) -> None:
        self.workload, self.why, self.traceback = workload, why, traceback
        super().__init__(
            f"no drill of {workload} was made, because it fails without a kill: {why.rstrip('.')}.",
            fix=fix or None,
        )


class TrackerError(SegueError):
    """An experiment tracker did not take a run's rows or its end. The run itself is untouched."""

    def __init__(self, *, sent_step: int, why: str) -> None:
        self.sent_step, self.why = sent_step, why
        super().__init__(
            f"The tracker failed after step {sent_step}: {why}",
            fix="check its address and that it answers, then run the same command again; no step is sent twice.",
        )
