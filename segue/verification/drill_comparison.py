"""Compares the two runs of a drill: the resumes of the disturbed run, and the final states of both runs.

The module is pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from segue.checkpoints.format.names import FOLDER
from segue.continuity.naming import CARRIED
from segue.continuity.recipe_diff import BINDING, NEXT_BATCHES, NOT_STATE
from segue.notices.disturbance import DisturbanceKind
from segue.records import Finding, FiniteValue, Value, Verdict, VerdictKind
from segue.runlog.entries import VerdictEntry
from segue.runlog.history import Attempt, Checkpoint, History

_NOT_STATE = NOT_STATE - {NEXT_BATCHES, BINDING}
_WITHOUT_FLOATS = ("modes",)
_PROVEN = (VerdictKind.EXACT, VerdictKind.EQUIVALENT)
_ORDER = (VerdictKind.BROKEN, VerdictKind.UNVERIFIED, VerdictKind.EQUIVALENT, VerdictKind.EXACT)

NOTHING_RECORDED = "the previous attempt ended before it recorded a step after the checkpoint"
ENDED_EARLY = "the attempt ended before it replayed a step"


class Problem(FiniteValue):
    """One reason why a drill did not pass, with the fix."""

    component: str
    sentence: str
    fix: str


class Resume(Value):
    """One resume of a drill, with its verdict."""

    after: str = Field(
        description="Cause of the previous attempt's end: kill, notice, or a stop reason if the pool ended it."
    )
    step: int = Field(ge=0, description="Step of the checkpoint from which the attempt resumed.")
    verdict: Verdict
    excuse: str | None = Field(
        None, description="Acceptable reason why no step was compared; None if there is no such reason."
    )

    @property
    def is_sound(self) -> bool:
        """Whether the resume has no known problem. Steps without a replay are covered by the comparison of the final
        states."""
        kind = self.verdict.kind
        is_excused = kind is VerdictKind.UNVERIFIED and self.excuse is not None
        return not self.lost and (kind in _PROVEN or is_excused)

    @property
    def lost(self) -> tuple[Finding, ...]:
        """Findings about values that training carries from step to step, and that the resume lost. The steps may still
        be equal."""
        return tuple(finding for finding in self.verdict.findings if finding.channel == CARRIED)

    @property
    def sentence(self) -> str:
        """A sentence with the verdict. If no step was compared, the sentence contains the reason."""
        return self.verdict.sentence + (f" ({self.excuse})" if self.excuse is not None else "")


def resumes_of(history: History, hits: Mapping[str, DisturbanceKind]) -> tuple[Resume, ...]:
    """Return every resume of a run.

    `hits` maps the id of each disturbed attempt to the disturbance that ended the attempt.
    """
    numbers = {attempt.claim.attempt_id: number for number, attempt in enumerate(history.attempts)}
    found = []
    for entry in history.resumes:
        number = numbers.get(entry.attempt_id, 0)
        before = history.attempts[number - 1] if number else None
        after = _cause(before, hits) if before is not None else "start"
        excuse = _excuse(history, entry) if entry.verdict.kind is VerdictKind.UNVERIFIED else None
        found.append(Resume(after=after, step=entry.parent.step, verdict=entry.verdict, excuse=excuse))
    return tuple(found)


def _cause(attempt: Attempt, hits: Mapping[str, DisturbanceKind]) -> str:
    hit = hits.get(attempt.claim.attempt_id)
    if hit is not None:
        return hit.value
    return attempt.report.stop_reason.in_words if attempt.report is not None else "unknown"


def _excuse(history: History, entry: VerdictEntry) -> str | None:
    checkpoint = history.checkpoint(entry.parent)
    if entry.verdict.rows_compared or any(finding.channel == CARRIED for finding in entry.verdict.findings):
        return None
    if checkpoint is not None and not checkpoint.rows:
        return NOTHING_RECORDED
    attempt = history.attempt_named(entry.attempt_id)
    report = attempt.report if attempt is not None else None
    return ENDED_EARLY if report is not None and report.stop_reason.is_preemption else None


def differing(one: Checkpoint, other: Checkpoint) -> tuple[str, ...]:
    """Return the names of the components in which two checkpoints differ.

    The comparison includes the position in the data, but not the settings that may differ between processes.
    """
    names = one.manifest.components.keys() | other.manifest.components.keys()
    pairs = ((name, one.manifest.components.get(name), other.manifest.components.get(name)) for name in names)
    return tuple(sorted(name for name, before, after in pairs if before != after and name not in _NOT_STATE))


def differing_before(undisturbed: History, disturbed: History) -> tuple[int, tuple[str, ...]] | None:
    """Return the first step that both runs committed before a disturbance, and the components that differ there.

    If the runs are equal at this step, or if the disturbed run's first attempt committed no such step, return None.
    """
    if not disturbed.attempts:
        return None
    first = disturbed.attempts[0].claim.attempt_id
    there = {each.manifest.step: each for each in undisturbed.checkpoints}
    own = (each for each in disturbed.checkpoints if each.ref.attempt_id == first and each.manifest.step in there)
    earliest = min(own, key=lambda each: each.manifest.step, default=None)
    if earliest is None:
        return None
    step = earliest.manifest.step
    names = differing(there[step], earliest)
    return (step, names) if names else None


def has_noise(component: str) -> bool:
    """Whether kernel noise can change a component, because the component contains floats that steps compute."""
    return component not in _WITHOUT_FLOATS and not component.startswith(("rng.", "data.", "setup."))


def worst(resumes: Sequence[Resume]) -> VerdictKind:
    """Return the worst verdict of the compared resumes. If no resume was compared, return unverified."""
    kinds = (resume.verdict.kind for resume in resumes if resume.excuse is None)
    return min(kinds, key=_ORDER.index, default=VerdictKind.UNVERIFIED)


def problems_of(
    resumes: Sequence[Resume], components: Sequence[str], *, of_folder: Sequence[str] = ()
) -> tuple[Problem, ...]:
    """Return one problem for each unsound resume, then one for each component that differs in the final states.

    `of_folder` contains sentences about differences between the two folders of a framework's checkpoint.
    """
    found: dict[str, Problem] = {}
    for resume in resumes:
        for lost in resume.lost:
            said = f"{lost.sentence} (seen at the resume from step {resume.step} after a {resume.after})"
            name = lost.sentence.partition(" ")[0]
            found.setdefault(name, Problem(component=name, sentence=said, fix=f"{lost.fix}; {_AGAIN}"))
    if found:
        return tuple(found.values())  # All other differences follow from the lost values.
    for resume in resumes:
        if resume.is_sound:
            continue
        first = resume.verdict.findings[0] if resume.verdict.findings else None
        component = first.component if first is not None else "run"
        said = f"{resume.verdict.kind}: {first.sentence}" if first is not None else resume.verdict.sentence
        where = f"the resume from step {resume.step} after a {resume.after} is {said}"
        fix = f"{first.fix}; {_AGAIN}" if first is not None and first.fix else _fix_of(component)
        found.setdefault(component, Problem(component=component, sentence=where, fix=fix))
    for component in components:
        said = f"{component} differs at the end from that of the undisturbed run"
        if component == FOLDER and of_folder:
            said += f": {'; '.join(of_folder)}"
        found.setdefault(component, Problem(component=component, sentence=said, fix=_fix_of(component)))
    return tuple(found.values())


_AGAIN = "then run `segue drill`, which shows in minutes if the difference is gone"


def _fix_of(component: str) -> str:
    if component == "run":
        return "set continuity.witness_steps above 0 and leave continuity.accept empty, so that steps are compared."
    if component == FOLDER:
        return (
            "let the framework write the same bytes in every run; replace a file that has a time or a path in it by "
            f"run.commit_folder(path, instead=...); {_AGAIN}."
        )
    if component.startswith(("setup.", "data")):
        return f"let the recipe build {component} the same way in every process, only from config and seed; {_AGAIN}."
    if component.startswith("rng."):
        return f"draw random numbers from the streams of torch, numpy and random only after the restore; {_AGAIN}."
    return (
        f"let {component} restore all of its state: add the missing state to Recipe.extra or run.track(), or correct "
        f"its load_state_dict; {_AGAIN}."
    )
