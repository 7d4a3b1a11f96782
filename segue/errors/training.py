"""What an attempt meets: resumes that do not hold, bad steps, other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from segue.errors.base import SegueError

if TYPE_CHECKING:
    from segue.records import Anomaly


class BrokenResumeError(SegueError):
    """A resume did not continue the run."""

    exit_code = 3

    def __init__(self, *, sentence: str) -> None:
        self.sentence = sentence
        super().__init__(
            f"the resume is not the run that would have been: {sentence.rstrip('.')}. Nothing was committed after it; "
            "fix the named state, then start the run again."
        )


class RehearsalError(SegueError):
    """A fresh process could not continue the run from its first checkpoint."""

    exit_code = 3

    def __init__(self, *, sentence: str) -> None:
        self.sentence = sentence
        super().__init__(
            "Resume rehearsal failed: a fresh process restored the first checkpoint but did not reproduce the next "
            f"steps ({sentence.rstrip('.')}). Fix: add the object to Recipe.extra and start a new run, "
            'or set continuity.rehearsal = "warn".'
        )


class PoisonedStepError(SegueError):
    """A step's numbers went bad; the state after it is not kept."""

    def __init__(self, *, anomaly: Anomaly) -> None:
        self.anomaly = anomaly
        super().__init__(
            f"{anomaly.sentence}. Nothing of that step was kept: the run goes back to its newest checkpoint and does "
            "it again. If it comes back, look at these samples, the learning rate and the number format."
        )


class RankFailedError(SegueError):
    """The recipe raised on another rank."""

    def __init__(self, *, rank: int, type_name: str, message: str, traceback: str) -> None:
        self.rank, self.type_name, self.message, self.traceback = rank, type_name, message, traceback
        super().__init__(f"rank {rank} raised {type_name}: {message}. Fix the recipe; its traceback follows.")


class RankMismatchError(SegueError):
    """Two ranks hold different state where it should be the same."""

    def __init__(self, *, rank: int, step: int) -> None:
        self.rank, self.step = rank, step
        super().__init__(
            f"rank {rank} and rank 0 have parameters or optimizer state of other names or sizes at step {step}, so "
            "what they stored together is not all of it. Build the same model and optimizer on every rank. Nothing "
            "was committed."
        )


class RankDriftError(SegueError):
    """The ranks do not train one model any more."""

    def __init__(self, *, rank: int, channel: str, here: float, leads: float) -> None:
        self.rank, self.channel, self.here, self.leads = rank, channel, here, leads
        super().__init__(
            f"the {channel} norm of rank {rank} is {here!r}, that of rank 0 {leads!r}: the ranks train different "
            "models. Let the loss call the model it is given, not its .module, and shard all of a model or none of it."
        )


class HungRankError(SegueError):
    """A rank is alive and did not come to where the others waited for it."""

    def __init__(self, *, ranks: tuple[int, ...], waited_seconds: float, step: int) -> None:
        self.ranks, self.waited_seconds, self.step = ranks, waited_seconds, step
        names = ", ".join(map(str, ranks))
        super().__init__(
            f"rank {names} hung: the others waited {waited_seconds:.0f} s for it after step {step}. Look for a loop or "
            "a lock that depends on the rank; if its steps just take that long, raise liveness.rank_seconds."
        )


class RankLostError(SegueError):
    """A rank ended without a word, or because of its store or its machine: nobody's code is to blame."""

    def __init__(self, *, ranks: tuple[int, ...], why: str) -> None:
        self.ranks, self.why = ranks, why
        super().__init__(f"rank {', '.join(map(str, ranks))} was lost: {why}. The run goes on from its last commit.")


class LossError(SegueError):
    """The recipe's loss function returned something that no step can be made of."""

    def __init__(self, *, loss: str, found: str, fix: str) -> None:
        self.loss, self.found, self.fix = loss, found, fix
        super().__init__(f"{loss} returned {found}; a step needs a scalar tensor with a gradient. Fix: {fix}")


class DrillFailedError(SegueError):
    """A drill could not be made: the recipe does not reach its goal even without a kill.

    `traceback` is that of the user's code, if it raised.
    """

    def __init__(
        self,
        *,
        recipe: str,
        why: str,
        fix: str = "Fix: correct the recipe, then run the drill again.",
        traceback: str = "",
    ) -> None:
        self.recipe, self.why, self.fix, self.traceback = recipe, why, fix, traceback
        super().__init__(
            f"no drill of {recipe} was made, because the recipe fails without a kill: {why.rstrip('.')}. {fix}".rstrip()
        )
