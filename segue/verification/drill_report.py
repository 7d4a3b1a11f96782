"""The report of `segue drill`: one undisturbed run and one with kills and notices, on one machine."""

from __future__ import annotations

from pydantic import Field

from segue.notices.disturbance import DisturbanceKind
from segue.records import CodeFailure, Finding, Record, Verdict, VerdictKind
from segue.verification.drill_comparison import Problem, Resume, has_noise, problems_of

_ROOM = "raise --steps: commits, the steps after them and the disturbances need some room."
_FIX = " Fix: "
_LEAST_STEPS = 12
"""Fewer steps cannot be drilled."""
_MOST_FILES = 3


class DrillReport(Record):
    """What a drill found."""

    recipe: str
    steps: int
    kills: int = Field(description="Kills that really hit a training attempt.")
    notices: int = Field(0, description="Notices that really ended a training attempt.")
    missed: tuple[DisturbanceKind, ...] = Field((), description="Kinds of disturbances that were asked for; none hit.")
    identical: bool = Field(description="Every component of the two final checkpoints is equal bit for bit.")
    verdict: VerdictKind = Field(description="Worst verdict of the resumes that could be compared; unverified if none.")
    verdicts: tuple[Verdict, ...]
    resumes: tuple[Resume, ...] = Field((), description="The resumes with their verdicts, in order.")
    differing: tuple[str, ...] = Field((), description="Components in which the two final checkpoints differ.")
    of_folder: tuple[str, ...] = Field(
        (), description="Files of a framework's checkpoint in which the two final states differ, with their entries."
    )
    noise: dict[str, float] = Field(
        default_factory=dict,
        description="Largest relative difference by channel between replays from one state, if kernels are not "
        "deterministic: the final states then differ without a loss. Empty: no such difference was seen.",
    )
    unreproducible: Finding | None = Field(
        None, description="What of the recipe each process does differently, so that nothing can be proven."
    )
    ended: str = Field(description="Why the disturbed run ended; any reason other than finished is itself a finding.")
    failure: CodeFailure | None = Field(None, description="What the recipe raised in the disturbed run, if it did.")
    reached: int = Field(0, ge=0, description="Step at which the undisturbed run ended; 0: not known.")
    apart_from: int | None = Field(
        None, description="First step that both runs committed, if they differ there, before any disturbance."
    )
    shared: tuple[str, ...] = Field(
        (), description="Files that the undisturbed run wrote in the working folder, and the disturbed run found there."
    )
    hidden: tuple[str, ...] = Field(
        (),
        description="Files and folders that the runs wrote in the working folder, and that some resumes did not find.",
    )
    kept: str | None = Field(None, description="Store in which both runs were kept; None: they were removed.")
    seconds: float

    @property
    def passed(self) -> bool:
        """Resumes were made after each kind of disturbance, and all of them continued the run."""
        was_disturbed = self.kills + self.notices > 0 and not self.missed
        is_sound = bool(self.resumes) and all(resume.is_sound for resume in self.resumes)
        return was_disturbed and self.ends_alike and is_sound and not self._lacks_replay

    @property
    def ends_alike(self) -> bool:
        """Whether the final states are equal, or differ only because kernels are not deterministic."""
        is_noisy = bool(self.noise) and self.ended == "finished" and all(map(has_noise, self.differing))
        return self.unreproducible is None and (self.identical or is_noisy)

    @property
    def _lacks_replay(self) -> bool:
        """Whether a run was killed, and no step could be compared after any kill. After a notice none can."""
        return self.kills > 0 and not any(resume.verdict.rows_compared for resume in self.resumes)

    @property
    def is_broken(self) -> bool:
        """Whether a resume is broken or the final states differ; else a drill that did not pass proves nothing."""
        return self.verdict is VerdictKind.BROKEN or not (self.ends_alike or self.unreproducible is not None)

    @property
    def disturbances(self) -> str:
        """The disturbances in words: 2 kills and 1 notice."""
        counts = {"kill": self.kills} | ({"notice": self.notices} if self.notices else {})
        return " and ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items())

    @property
    def outcome(self) -> str:
        """How the two runs compare, in one sentence."""
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
        """Why it did not pass, each with what to do."""
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
            fix = own_fix or "correct what it raises after a resume; its traceback is in the output."
            found.append(Problem(component="run", sentence=self.outcome, fix=fix))
        if self.missed and (self.ended == "finished" or not found):
            kinds = " and no ".join(kind.value for kind in self.missed)
            found.append(Problem(component="drill", sentence=f"no {kinds} hit the run before it ended", fix=self.room))
        if not found and self._lacks_replay:
            fix = "set continuity.witness_steps above 0, and checkpoints.every_steps to some steps and not to one."
            found.append(Problem(component="run", sentence="no step could be replayed after a kill", fix=fix))
        if self.hidden and not self.ends_alike and self.apart_from is None:
            found.append(self._elsewhere)
        return tuple(found)

    @property
    def room(self) -> str:
        """The advice that gives the disturbances room if none hit the run."""
        if not 0 < self.reached < self.steps:
            return _ROOM
        ends = f"the script ends by itself at step {self.reached}, and disturbances are planned over all --steps"
        if self.reached < _LEAST_STEPS:
            return f"let the script train for at least {_LEAST_STEPS} steps: {ends}."
        return f"give --steps {self.reached}: {ends}."

    @property
    def _elsewhere(self) -> Problem:
        """The cause may be files that a resume on another machine does not find."""
        files = " and ".join(self.hidden[:_MOST_FILES])
        sentence = f"the last resume was made as on another machine, without what the script had written: {files}"
        fix = "keep in the run's state what a resume or the end reads from there, by run.track() or run.commit_folder()"
        return Problem(component="files", sentence=sentence, fix=f"{fix}; then run `segue drill` again.")

    @property
    def _unlike(self) -> Problem:
        """The two runs were not alike before anything disturbed one of them."""
        names = ", ".join(self.differing)
        sentence = f"the two runs differ already at step {self.apart_from}, before the first disturbance, in {names}"
        fix = "seed everything that draws random numbers, and let no number depend on the time or the process"
        if self.shared:
            files = " and ".join(self.shared[:_MOST_FILES])
            sentence += f"; both work in this folder, and the disturbed run found what the other one wrote: {files}"
            fix = f"let the script read {files} only `if not run.is_active`, or {fix}"
        return Problem(component="run", sentence=sentence, fix=f"{fix}; then run `segue drill` again.")
