"""Defines the errors of an attempt: broken resumes, bad steps, and failures of other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from segue.errors.base import SegueError

if TYPE_CHECKING:
    from segue.records import Anomaly


class BrokenResumeError(SegueError):
    """A resume did not reproduce the run."""

    exit_code = 3

    def __init__(self, *, component: str, detail: str, fix: str = "") -> None:
        # The finding of a lost component begins with the same words, which the message must not repeat.
        self.component, self.detail = component, detail.removeprefix(f"{component} was not restored: ").rstrip(".")
        is_lost = detail.startswith(f"{component} was not restored")
        what = f"{component} was not restored ({self.detail})" if is_lost else f"{component}: {self.detail}"
        super().__init__(
            f"Resume verification failed: {what}. No checkpoint was written after the resume.",
            fix=f"{fix or f'correct {component}'}; then start the run again.",
        )


class RehearsalError(SegueError):
    """The resume rehearsal failed: a fresh process could not continue the run from the first checkpoint."""

    exit_code = 3

    def __init__(self, *, sentence: str, fix: str = "") -> None:
        self.sentence = sentence
        super().__init__(
            "Resume rehearsal failed: a fresh process restored the first checkpoint but did not reproduce the next "
            f"steps ({sentence.rstrip('.')}).",
            fix=f'{fix or "add the object to Recipe.extra"}; start a new run, or set continuity.rehearsal = "warn".',
        )


class StructureChangedError(SegueError):
    """The training changed the structure of the model or of an optimizer. A resume would lack this change."""

    def __init__(self, *, changes: tuple[str, ...], step: int, saved_step: int) -> None:
        self.changes, self.step, self.saved_step = changes, step, saved_step
        more = f"; and {len(changes) - 3} more" if len(changes) > 3 else ""
        kept = f"the run keeps its checkpoints up to step {saved_step}" if saved_step else "there was no checkpoint yet"
        super().__init__(
            f"The structure of the model or an optimizer changed during training; a resume would lack the change: "
            f"{'; '.join(changes[:3])}{more}. Nothing was saved at step {step}; {kept}.",
            fix="build the structure of the whole run from the start (in `build`, or before `run.track`), and freeze "
            "parameters by requires_grad_(False), which is saved. Or end the run before the change and start a new run "
            "from the exported weights (segue checkpoints export and import).",
        )


class NonDeterministicOperationError(SegueError):
    """The run permits only deterministic kernels, but an operation of the recipe has no deterministic kernel."""

    def __init__(self, *, operation: str, where: str) -> None:
        self.operation, self.where = operation, where
        place = f" at {where}" if where else ""
        super().__init__(
            f"{operation}{place} has no deterministic kernel, but only deterministic kernels are allowed "
            "(deterministic = true in the run spec, or torch.use_deterministic_algorithms in the recipe).",
            fix="replace the operation, or remove that setting; resumes are then compared within the measured noise.",
        )


class PoisonedStepError(SegueError):
    """A step had anomalous numbers, so the state after this step is discarded."""

    def __init__(self, *, anomaly: Anomaly) -> None:
        self.anomaly = anomaly
        super().__init__(
            f"{anomaly.sentence}. The state after that step was not kept: the run goes back to its newest "
            "checkpoint and repeats the step.",
            fix="if it happens again, check these samples, the learning rate and the number format.",
        )


class RankFailedError(SegueError):
    """The recipe raised an exception on another rank."""

    def __init__(self, *, rank: int, type_name: str, message: str, traceback: str, is_transient: bool = False) -> None:
        self.rank, self.type_name, self.message, self.traceback = rank, type_name, message, traceback
        self.is_transient = is_transient
        super().__init__(
            f"rank {rank} raised {type_name}: {message}.", fix="correct the recipe; the traceback of that rank follows."
        )


class RankMismatchError(SegueError):
    """State that must be equal on all ranks differs between two ranks."""

    def __init__(self, *, rank: int, step: int) -> None:
        self.rank, self.step = rank, step
        super().__init__(
            f"rank {rank} and rank 0 have parameters or optimizer state of different names or sizes at step {step}, "
            "so the stored parts are not the whole state. Nothing was committed.",
            fix="build the same model and optimizer on every rank.",
        )


class RankDriftError(SegueError):
    """The ranks no longer train the same model."""

    def __init__(self, *, rank: int, channel: str, here: float, leads: float) -> None:
        self.rank, self.channel, self.here, self.leads = rank, channel, here, leads
        super().__init__(
            f"the {channel} norm is {here!r} on rank {rank} and {leads!r} on rank 0: the ranks train different models.",
            fix="in the loss function, call the given model, not its .module; shard either the whole model or nothing.",
        )


class HungRankError(SegueError):
    """A rank is alive but did not reach the point at which the other ranks wait."""

    def __init__(self, *, ranks: tuple[int, ...], waited_seconds: float, step: int) -> None:
        self.ranks, self.waited_seconds, self.step = ranks, waited_seconds, step
        names = ", ".join(map(str, ranks))
        super().__init__(
            f"rank {names} hung: the other ranks waited {waited_seconds:.0f} s after step {step}.",
            fix="look for a loop or a lock that depends on the rank; if a step can take that long, set a larger "
            "liveness.rank_seconds.",
        )


class RankLostError(SegueError):
    """A rank ended without a report, or its store or machine failed. The recipe itself did not fail."""

    def __init__(self, *, ranks: tuple[int, ...], why: str) -> None:
        self.ranks, self.why = ranks, why
        super().__init__(
            f"rank {', '.join(map(str, ranks))} was lost: {why}. The run continues from its last commit.",
            fix="none needed.",
        )


class MetadataServiceError(SegueError):
    """The metadata service of a cloud machine could not be read. segue misses its notices until it answers."""

    def __init__(self, *, provider: str, url: str, why: str) -> None:
        self.provider, self.url, self.why = provider, url, why
        super().__init__(
            f"the metadata service of {provider} at {url} could not be read: {why.rstrip('.')}. The request is "
            "repeated.",
            fix="give this process access to that address (in a container on AWS: set a hop limit of 2), or remove the "
            "provider from `notices`.",
        )


class LossError(SegueError):
    """The result of the recipe's loss function cannot be used for a step."""

    def __init__(
        self, *, loss: str, found: str, fix: str, needed: str = "a step needs a scalar tensor with a gradient"
    ) -> None:
        self.loss, self.found = loss, found
        super().__init__(f"{loss} returned {found}; {needed}.", fix=fix)


class DrillFailedError(SegueError):
    """A drill was not possible, because the recipe or program also fails without a kill.

    If the user's code raised an exception, `traceback` is the traceback of the exception.
    """

    def __init__(
        self,
        *,
        workload: str,
        why: str,
        fix: str = "correct the cause, then run the drill again.",
        traceback: str = "",
    ) -> None:
        self.workload, self.why, self.traceback = workload, why, traceback
        super().__init__(
            f"no drill of {workload} was made, because {workload} fails without a kill too: {why.rstrip('.')}.",
            fix=fix or None,
        )


class TrackerError(SegueError):
    """An experiment tracker did not accept the rows or the end of a run. The run itself is not affected."""

    def __init__(self, *, sent_step: int, why: str) -> None:
        self.sent_step, self.why = sent_step, why
        super().__init__(
            f"The tracker failed after step {sent_step}: {why}",
            fix="check that the tracker answers at its address, then run the same command again; no step is "
            "sent twice.",
        )


class MachineError(SegueError):
    """This machine cannot continue the run, but another machine can."""


class MachineTooSmallError(MachineError):
    """An undamaged checkpoint does not fit into the memory of this machine or of its container."""

    def __init__(self, *, key: str, needed_bytes: int, memory_bytes: int) -> None:
        self.key, self.needed_bytes, self.memory_bytes = key, needed_bytes, memory_bytes
        super().__init__(
            f"{key} has {needed_bytes / 1e9:.1f} GB, but this process may use only {memory_bytes / 1e9:.1f} GB of "
            "memory. The checkpoint was not changed.",
            fix="resume on a machine, or in a container, with more memory.",
        )


class UnfitMachineError(MachineError):
    """A machine failed the check before the claim."""

    def __init__(self, *, machine: str, problems: tuple[str, ...]) -> None:
        self.machine, self.problems = machine, problems
        super().__init__(
            f"{machine} failed the check before the claim: {'; '.join(problems)}. Nothing was changed. The run "
            "asks for a machine again.",
            fix="repair that machine, or remove it from the pool; `segue status` lists the bad machines of a run.",
        )


class AcceleratorGoneError(MachineError):
    """The run trained on an accelerator, but torch finds no accelerator on this machine."""

    def __init__(self, *, device: str, host: str) -> None:
        self.device, self.host = device, host
        super().__init__(
            f"the run trained on {device}, but torch finds no accelerator on {host}. A driver may have failed. "
            "Nothing was changed.",
            fix='run `nvidia-smi` there and remove the machine from the pool, or set device = "cpu" to continue '
            "without an accelerator.",
        )
