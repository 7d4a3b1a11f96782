"""Fixes that are applied literally: the values that a fix names are registered, and nothing else is changed. An
expression is evaluated in the line in which the script makes its recipe.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import segue
from benchmarks.continuity.blind.cases import PARENT_STEP, SAVE_EVERY_STEPS, WINDOW_STEPS, Case
from benchmarks.continuity.blind.outcome import BlindOutcome
from benchmarks.continuity.blind.rewritten import rewritten_recipe
from benchmarks.continuity.blind.trial import Bench, acts_after, outcome_of, parent_of, without_parent, workplace
from segue.recipe import Recipe
from segue.records import Finding, VerdictKind
from segue.runlog.entries import CommitEntry
from segue.runlog.log import RunLog

_IN_EXTRA = re.compile(r'(?:import (?P<module>[\w.]+), and )?extra=\{"(?P<name>\w+)": (?P<value>.+?)\}(?=$|; )')
_OF_RECIPE = re.compile(
    r'(?:import (?P<module>[\w.]+), and )?recipe\.extra\["(?P<name>\w+)"\] = (?P<value>.+?), where recipe is'
)
_IN_PROGRAM = re.compile(r"(?:import (?P<module>[\w.]+), and )?run\.track\((?P<name>\w+)=(?P<value>.+?)\)(?=$|; )")

Lines = tuple[tuple[str, str, str], ...]
"""The module to import, the name, and the expression of each registration."""


class NoAdviceError(Exception):
    """A finding has no line of code that could be applied."""


def lines_of(findings: Iterable[Finding], *, is_program: bool = False) -> Lines:
    """The lines of code in the fixes of these findings.

    Raises:
        NoAdviceError: a finding has no line of code.
    """
    found: dict[str, tuple[str, str, str]] = {}
    for finding in findings:
        patterns = (_IN_PROGRAM,) if is_program else (_IN_EXTRA, _OF_RECIPE)
        matches = [match for pattern in patterns for match in pattern.finditer(finding.fix)]
        if not matches:
            raise NoAdviceError(f"{finding.sentence}: {finding.fix}")
        found |= {match["name"]: (match["module"] or "", match["name"], match["value"]) for match in matches}
    return tuple(found.values())


@contextmanager
def followed(lines: Lines) -> Iterator[None]:
    """A `with` block in which every new recipe has these registrations."""
    made = Recipe.__post_init__

    @functools.wraps(made)
    def registered(recipe: Recipe) -> None:
        made(recipe)
        # What `build` returns is checked again, and then has all that the script has put into it.
        is_returned = any(name in recipe.extra for _, name, _ in lines) or sys._getframe(1).f_code.co_name != "__init__"
        places = [*_frames_of_scripts(sys._getframe(1))]
        due = [line for line in lines if line[1] not in recipe.extra and (is_returned or "recipe." not in line[2])]
        recipe.extra = {
            **recipe.extra,
            **{name: _evaluated(module, value, recipe, places) for module, name, value in due},
        }

    Recipe.__post_init__ = registered  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Recipe.__post_init__ = made  # type: ignore[method-assign]


def _frames_of_scripts(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if ".continuity.scripts." in name and not name.endswith(".base"):  # Whose function is no place to add a line.
            yield frame
        frame = frame.f_back


def _evaluated(module: str, value: str, recipe: Recipe, places: list[FrameType]) -> Any:
    names: dict[str, Any] = {"segue": segue, "recipe": recipe}
    if module:
        importlib.import_module(module)
        names[module.partition(".")[0]] = sys.modules[module.partition(".")[0]]
    error: Exception | None = None
    for place in places:
        try:
            return eval(value, place.f_globals, {**place.f_locals, **names})  # noqa: S307 - what segue itself printed
        except NameError as caught:  # It stands further out.
            error = caught
    if error is not None:
        raise error
    return eval(value, names)  # noqa: S307 - on what `build` returned


def run_advised(case: Case, *, seed: int = 0) -> BlindOutcome:
    """Run the case again, with all registrations that the findings of its first attempt and its resume request. If the
    fix is no line of code, use the case that was rewritten by hand according to the fix.
    """
    lines: Lines = ()
    tried, made = case, _resumed(case, lines, seed=seed)
    if made.is_exact and not made.said:
        return made.outcome  # Nothing was lost, and nothing was said.
    other = rewritten_recipe(case.name)
    for _ in range(_ROUNDS):
        if other is not None:
            tried = replace(case, recipe=other)
        else:
            try:
                lines = (*lines, *(line for line in lines_of(made.said) if line not in lines))
            except NoAdviceError as error:
                return replace(made.outcome, is_enough=False, problem=f"no line to follow: {error}")
        made = _resumed(tried, lines, seed=seed)
        if not made.said:
            break
    fix = "rewritten by hand" if other is not None else "; ".join(f"{name}={value}" for _, name, value in lines)
    is_followed = bool(lines) or other is not None
    return replace(made.outcome, fix=fix, is_enough=is_followed and made.is_exact and not made.said)


_ROUNDS = 2
"""Largest number of applied fixes. Some values are named only after other values are registered."""


@dataclass(frozen=True)
class _Made:
    """A case from its first attempt to a judged resume."""

    outcome: BlindOutcome
    said: tuple[Finding, ...] = ()
    """Findings about untracked state at the commits."""

    @property
    def is_exact(self) -> bool:
        """Whether the resume was judged exact, and an unjudged resume trained in the same way as the uninterrupted
        run."""
        return self.outcome.verdict == VerdictKind.EXACT and self.outcome.acts_after is None


def _resumed(case: Case, lines: Lines, *, seed: int) -> _Made:
    with tempfile.TemporaryDirectory(prefix="segue-advice-", dir=workplace()) as name, followed(lines):
        bench = Bench(case, Path(name), seed)
        end = PARENT_STEP + max(case.window, SAVE_EVERY_STEPS)
        whole = bench.attempt("whole", number=0, stop_step=end, measures=True)
        parent = parent_of(whole.history)
        if parent is None:
            return _Made(without_parent(case, whole))
        bench.copy("whole", "free")
        free = bench.attempt("free", number=1, stop_step=end, parent=parent, is_judged=False, measures=True)
        judged = bench.attempt("whole", number=1, stop_step=parent.step + WINDOW_STEPS, parent=parent)
        acts = acts_after(case, whole, free, parent=parent.step)
        said = (*_findings_of(bench.log("whole")), *_findings_of(bench.log("free")))
        return _Made(replace(outcome_of(case, judged), acts_after=acts), said)


def _findings_of(log: RunLog) -> list[Finding]:
    commits = [slot.entry for slot in log.reload().slots if isinstance(slot.entry, CommitEntry)]
    return [*{finding.fix: finding for commit in commits for finding in commit.untracked}.values()]
