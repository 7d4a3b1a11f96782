"""The report of `segue drill`, which makes an undisturbed run, and a run with kills and notices, on one machine."""

from __future__ import annotations

from pydantic import Field

from segue.notices.disturbance import DisturbanceKind
from segue.records import CodeFailure, Finding, Record, Verdict, VerdictKind
from segue.verification.drill_comparison import Problem, Resume, has_noise, problems_of

_ROOM = "raise --steps, because commits and disturbances need some steps between them."
_FIX = " Fix: "
_LEAST_STEPS = 12
"""Smallest number of steps for which a drill can plan disturbances."""
_MOST_FILES = 3


class DrillReport(Record):
    """The result of a drill."""

    recipe: str
    steps: int
    kills: int = Field(description="Number of kills that ended a training attempt.")
    notices: int = Field(0, description="Number of notices that ended a training attempt.")
    missed: tuple[DisturbanceKind, ...] = Field((), description="Requested kinds of disturbances that hit no attempt.")
    identical: bool = Field(description="True if all components of the two final checkpoints are equal bit for bit.")
    verdict: VerdictKind = Field(description="Worst verdict of the compared resumes; unverified if none was compared.")
    verdicts: tuple[Verdict, ...]
    resumes: tuple[Resume, ...] = Field((), description="All resumes with their verdicts, in order of time.")
    differing: tuple[str, ...] = Field((), description="Components in which the two final checkpoints differ.")
    of_folder: tuple[str, ...] = Field(
        (), description="Differences between the framework's checkpoints in the two final states, by file and entry."
    )
    noise: dict[str, float] = Field(
        default_factory=dict,
        description="Largest relative difference between replays from one state, by channel. If kernels are not "
        "deterministic, the final states may differ without lost state. Empty if no replays differed.",
    )
    unreproducible: Finding | None = Field(
        None, description="Part of the recipe that differs from process to process, so that nothing can be proven."
    )
    ended: str = Field(description="Reason of the disturbed run's end; any reason except finished is itself a problem.")
    failure: CodeFailure | None = Field(
        None, description="Exception of the recipe in the disturbed run, if there was one."
    )
    reached: int = Field(0, ge=0, description="Step at which the undisturbed run ended; 0 if unknown.")
    apart_from: int | None = Field(
        None, description="First step that both runs committed, if the runs differ at this step before any disturbance."
    )
    shared: tuple[str, ...] = Field(
        (), description="Files that the undisturbed run wrote to the working folder and the disturbed run found there."
    )
    hidden: tuple[str, ...] = Field(
        (),
        description="Files and folders that the runs wrote to the working folder and that some resumes did not find.",
    )
    kept: str | None = Field(None, description="Store that still has both runs; None if the runs were removed.")
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the run resumed after each kind of disturbance, and each resume continued the run correctly."""
        was_disturbed = self.kills + self.notices > 0 and not self.missed
        is_sound = bool(self.resumes) and all(resume.is_sound for resume in self.resumes)
        return was_disturbed and self.ends_alike and is_sound and not self._lacks_replay

    @property
    def ends_alike(self) -> bool:
        """Whether the final states are equal, or differ only by kernel noise."""
        is_noisy = bool(self.noise) and self.ended == "finished" and all(map(has_noise, self.differing))
        return self.unreproducible is None and (self.identical or is_noisy)

    @property
    def _lacks_replay(self) -> bool:
        """Whether there were kills, but no resume replayed a step. After a notice, there are no steps to replay."""
        return self.kills > 0 and not any(resume.verdict.rows_compared for resume in self.resumes)

    @property
    def is_broken(self) -> bool:
        """Whether a resume is broken or the final states differ.

        If the drill neither passed nor is broken, it proves nothing.
        """
        return self.verdict is VerdictKind.BROKEN or not (self.ends_alike or self.unreproducible is not None)

    @property
    def disturbances(self) -> str:
        """A text with the disturbances, such as `2 kills and 1 notice`."""
        counts = {"kill": self.kills} | ({"notice": self.notices} if self.notices else {})
        return " and ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items())

    @property
    def outcome(self) -> str:
        """A sentence with the result of the comparison of the two runs."""
        if self.ended != "finished":
            return f"the disturbed run did not finish ({self.ended.partition(_FIX)[0].rstrip('.')})"
        if not self.kills and not self.notices:
            return "the run had ended before it could be disturbed, so no resume was tried"
        if self.identical:
            return "the final state is identical to that of the uninterrupted run"
        if self.unreproducible is not None:
            return "the final states cannot be compared, because the recipe is not reproducible"
        if self.noise and self.ends_alike:
            return "the final states cannot be compared bit for bit, because kernels are not deterministic"
        return f"the final state differs from that of the uninterrupted run in {', '.join(self.differing)}"

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The reasons why the drill did not pass, each with its fix. If the drill passed, there are none."""
        if self.passed:
            return ()
        is_explained = (self.ends_alike and not self.identical) or self.unreproducible is not None
        found = [] if is_explained or self.apart_from is None else [self._unlike]
        found += problems_of(self.resumes, () if is_explained or found else self.differing, of_folder=self.of_folder)
        own = self.unreproducible
        if own is not None and all(one.component != own.component for one in found):
            found.append(Problem(component=own.component, sentence=own.sentence, fix=own.fix))
        if self.ended != "finished" and not found:
            own_fix = self.ended.partition(_FIX)[2]
            fix = own_fix or "correct the exception after the resume; its traceback is in the output."
            found.append(Problem(component="run", sentence=self.outcome, fix=fix))
        if self.missed and (self.ended == "finished" or not found):
            kinds = " and no ".join(kind.value for kind in self.missed)
            found.append(Problem(component="drill", sentence=f"no {kinds} hit the run before it ended", fix=self.room))
        if not found and self._lacks_replay:
            fix = "set continuity.witness_steps above 0 and checkpoints.every_steps above 1."
            found.append(Problem(component="run", sentence="no step could be replayed after a kill", fix=fix))
        if self.hidden and not self.ends_alike and self.apart_from is None:
            found.append(self._elsewhere)
        return tuple(found)

    @property
    def room(self) -> str:
        """The fix if a disturbance ended no attempt."""
        if not 0 < self.reached < self.steps:
            return _ROOM
        ends = f"the script ends by itself at step {self.reached}, and disturbances are planned over all --steps"
        if self.reached < _LEAST_STEPS:
            return f"let the script train for at least {_LEAST_STEPS} steps: {ends}."
        return f"give --steps {self.reached}: {ends}."

    @property
    def _elsewhere(self) -> Problem:
        """The problem that a resume on another machine does not find files that the runs wrote."""
        files = " and ".join(self.hidden[:_MOST_FILES])
        sentence = f"the last resume simulated another machine, which does not have these files of the script: {files}"
        fix = "keep the data of these files in the run's state, by run.track() or run.commit_folder()"
        return Problem(component="files", sentence=sentence, fix=f"{fix}; then run `segue drill` again.")

    @property
    def _unlike(self) -> Problem:
        """The problem that the two runs already differed before the first disturbance."""
        names = ", ".join(self.differing)
        sentence = f"the two runs already differ in {names} at step {self.apart_from}, before the first disturbance"
        fix = "seed everything that draws random numbers, and let no number depend on the time or the process"
        if self.shared:
            files = " and ".join(self.shared[:_MOST_FILES])
            sentence += f"; both runs work in this folder, and the disturbed run found files of the other run: {files}"
            fix = f"let the script read {files} only `if not run.is_active`, or {fix}"
        return Problem(component="run", sentence=sentence, fix=f"{fix}; then run `segue drill` again.")
