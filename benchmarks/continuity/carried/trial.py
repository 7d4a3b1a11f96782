"""One program of the axis: a first attempt to its goal, resumes from its checkpoints, and the same attempts after the
fix."""

from __future__ import annotations

import ast
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.continuity.blind.trial import workplace
from benchmarks.continuity.carried.kind import Kind
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.clock import SystemClock
from segue.continuity.naming import UNREGISTERED
from segue.errors import SegueError
from segue.launch.assignment import Assignment
from segue.notices.board import NoticeBoard
from segue.records import Capacity, CheckpointRef, Finding, SegmentPlan, SegmentReport, StopReason, Verdict, VerdictKind
from segue.runlog.entries import CommitEntry
from segue.runlog.history import Checkpoint, History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores import LocalStore

RUN_ID, SAVE_EVERY_STEPS, SAVE_EVERY_STEPS_OF_SOUND = "carried", 10, 2
_NOT_STATE = ("setup.", "loose")


@dataclass(frozen=True)
class Outcome:
    """The verdicts on one program."""

    name: str
    verdicts: tuple[str, ...]
    sentences: tuple[str, ...]
    is_lost: bool
    """Whether a resume ended with a different state than the first attempt."""
    is_found: bool
    """Whether every resume that lost state was called neither exact nor equivalent."""
    is_named: bool
    is_named_first: bool
    """Whether the first finding names the lost value."""
    is_named_at_commit: bool
    commits: tuple[str, ...] = ()
    """The findings at commits."""
    is_fix_enough: bool | None = None
    """Whether the same resumes are exact after the fix; None: there is no fix, or it was not tried."""
    fixed: str = ""
    """The findings after the fix."""
    problem: str = ""


@dataclass
class _Runs:
    history: History
    reports: list[SegmentReport]
    verdicts: list[Verdict]
    commits: list[Finding]
    ends: list[dict[str, str]] = field(default_factory=list)
    problem: str = ""


def outcome_of(kind: Kind, *, resumes: int, with_fix: bool = True) -> Outcome:
    """Make both attempts of the program as it is, and again after its fix."""
    runs = _runs_of(kind, kind.source, resumes)
    found = [finding for verdict in runs.verdicts for finding in verdict.findings]
    first = [verdict.findings[0] for verdict in runs.verdicts if verdict.findings]
    exact = (VerdictKind.EXACT, VerdictKind.EQUIVALENT)
    named = [any(_names(kind, finding) for finding in verdict.findings) for verdict in runs.verdicts]
    outcome = Outcome(
        name=kind.name,
        verdicts=tuple(str(verdict.kind) for verdict in runs.verdicts),
        sentences=tuple(verdict.sentence for verdict in runs.verdicts),
        is_lost=any(end != runs.ends[0] for end in runs.ends[1:]),
        is_found=bool(runs.verdicts) and all(verdict.kind not in exact for verdict in runs.verdicts),
        is_named=bool(named) and all(named),
        is_named_first=bool(first) and all(_is_first(kind, finding) for finding in first),
        is_named_at_commit=any(_names(kind, finding) for finding in runs.commits),
        commits=tuple(finding.with_fix for finding in runs.commits),
        problem=runs.problem,
    )
    if kind.is_sound or not with_fix or not (found or runs.commits):
        return outcome
    return _with_fix(outcome, kind, [*runs.commits, *first], resumes)


def _with_fix(outcome: Outcome, kind: Kind, findings: Sequence[Finding], resumes: int) -> Outcome:
    fixes = list(dict.fromkeys(finding.fix for finding in findings if _names(kind, finding) and finding.fix))
    source = kind.source
    try:
        for fix in fixes[:1]:
            source = followed(fix, source)
    except ValueError as error:
        return _replaced(outcome, is_fix_enough=False, fixed=f"cannot be followed: {error}")
    if source == kind.source:
        return _replaced(outcome, is_fix_enough=False, fixed=f"nothing to follow: {fixes}")
    runs = _runs_of(kind, source, resumes)
    is_exact = bool(runs.verdicts) and all(verdict.kind is VerdictKind.EXACT for verdict in runs.verdicts)
    is_same = all(end == runs.ends[0] for end in runs.ends)
    said = "; ".join([runs.problem, *(verdict.sentence for verdict in runs.verdicts if verdict.findings)])
    return _replaced(outcome, is_fix_enough=is_exact and is_same and not runs.problem, fixed=said)


def _replaced(outcome: Outcome, **fields: object) -> Outcome:
    return Outcome(**{**vars(outcome), **fields})


def _names(kind: Kind, finding: Finding) -> bool:
    words = "|".join(map(re.escape, kind.variables))
    return (
        bool(kind.variables)
        and finding.component == UNREGISTERED
        and bool(re.search(rf"\b({words})\b", finding.sentence))
    )


def _is_first(kind: Kind, finding: Finding) -> bool:
    """Whether the sentence begins with the variable, or with the object or collection whose first difference it is."""
    said, _, difference = finding.sentence.partition(": ")
    path = difference.split(maxsplit=1)[0].split(".") if difference else []
    return any(re.search(rf"\b{re.escape(name)}\b", said) or name in path for name in kind.variables)


def _runs_of(kind: Kind, source: str, resumes: int) -> _Runs:
    with tempfile.TemporaryDirectory(prefix="segue-carried-", dir=workplace()) as name, _at(Path(name)) as folder:
        script = folder / "train.py"
        script.write_text(source, encoding="utf-8")
        log = RunLog(LocalStore(folder / "store").create(), RUN_ID)
        spec = _spec(script, kind)
        runs = _Runs(read_history(log), [], [], [])
        _attempt(spec, log, runs, number=0, parent=None)
        parents = [each for each in runs.history.usable if each.rows][:resumes]
        runs.commits = [
            found
            for slot in log.reload().slots
            if isinstance(slot.entry, CommitEntry)
            for found in slot.entry.untracked
        ]
        if not parents:
            runs.problem = "the first attempt left nothing to resume"
        for number, parent in enumerate(parents, start=1):
            _attempt(spec, log, runs, number=number, parent=parent.ref)
        for report in runs.reports:
            is_broken = report.failure is not None and report.failure.type == "BrokenResumeError"
            if report.stop_reason is not StopReason.FINISHED and not is_broken:
                runs.problem = report.failure.message if report.failure else str(report.stop_reason)
        return runs


def _attempt(spec: RunSpec, log: RunLog, runs: _Runs, *, number: int, parent: CheckpointRef | None) -> None:
    from segue.trainer.attempt import run_attempt

    plan = SegmentPlan(
        segment=number, attempt=1, capacity=Capacity.SPOT, deployment="bench", parent=parent, at_most=parent
    )
    clock, arguments, path = SystemClock(), sys.argv, list(sys.path)
    with suppress(SegueError):
        runs.reports.append(
            run_attempt(
                Assignment(spec=spec, plan=plan),
                runlog=log.reload(),
                board=NoticeBoard(clock),
                clock=clock,
                shards=InlineWriter([log.store]),
            )
        )
    sys.argv, sys.path[:] = arguments, path
    runs.history = read_history(log.reload())
    last = runs.history.attempts[-1]
    if parent is not None and last.verdict is not None:
        runs.verdicts.append(last.verdict)
    elif parent is not None:
        runs.problem = "a resume has no verdict"
    end = next((each for each in reversed(runs.history.checkpoints) if each.ref in last.commits), None)
    if end is not None and runs.reports and runs.reports[-1].stop_reason is StopReason.FINISHED:
        runs.ends.append(_state_of(end))


def _state_of(end: Checkpoint) -> dict[str, str]:
    components = end.manifest.components.items()
    return {name: str(digest) for name, digest in components if not name.startswith(_NOT_STATE)}


def _spec(script: Path, kind: Kind) -> RunSpec:
    every = SAVE_EVERY_STEPS_OF_SOUND if kind.is_sound else SAVE_EVERY_STEPS
    return RunSpec.parse(
        {
            "run_id": RUN_ID,
            "program": {"command": ["python", str(script)]},
            "steps": kind.steps,
            "threads": 1,
            "device": "cpu",
            "store": {"url": str(script.parent / "store")},
            "checkpoints": {"every_steps": every, "keep": 1000, "staging_buffers": 2},
            "liveness": {"heartbeat_seconds": 3600.0},
            "continuity": {"rehearsal": "off"},
        }
    )


@contextmanager
def _at(folder: Path) -> Iterator[Path]:
    before, level = Path.cwd(), logging.getLogger("segue").level
    logging.getLogger("segue").setLevel(logging.CRITICAL)
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
        logging.getLogger("segue").setLevel(level)


_BEFORE_TRAINING = re.compile(r"write `([^`]+)` before the training loop")
_BEFORE_LOOP = re.compile(
    r"write `([^`]+)` right before the loop in line (\d+), and from there on ((?:`[^`]+` for `[\w.]+`(?:, )?)+)"
)
_OF_ITS_OWN = re.compile(r"make the assignment of (\w+) in line (\d+) a statement of its own")
_REGISTER = re.compile(r"register it: (run\.track\((?:[^()]|\([^()]*\))*\))")


def followed(fix: str, source: str) -> str:
    """Return the program after a fix was applied literally.

    Raises:
        ValueError: the fix names no change that can be applied.
    """
    lines = source.splitlines()
    for name, number in _OF_ITS_OWN.findall(fix):
        lines = _with_statement(lines, name, int(number))
    inserts: list[tuple[int, str]] = []
    for call, number, pairs in _BEFORE_LOOP.findall(fix):
        line = int(number)
        for new, old in re.findall(r"`([^`]+)` for `([\w.]+)`", pairs):
            lines = _renamed(lines, old, new, line)
        inserts.append((line, call))
    inserts += [(_training_loop(lines), call) for call in (*_BEFORE_TRAINING.findall(fix), *_REGISTER.findall(fix))]
    if not inserts:
        raise ValueError(fix)
    for line, call in sorted(inserts, reverse=True):
        margin = re.match(r"\s*", lines[line - 1])
        lines.insert(line - 1, f"{margin[0] if margin else ''}{call}")
    return "\n".join(lines) + "\n"


def _with_statement(lines: Sequence[str], name: str, number: int) -> list[str]:
    """Return the lines, with an assignment expression replaced by a statement before its line."""
    line = lines[number - 1]
    found = re.search(rf"\({name} := ([^()]*(?:\([^()]*\)[^()]*)*)\)", line)
    if found is None:
        raise ValueError(line)
    margin = line[: len(line) - len(line.lstrip())]
    own = [f"{margin}{name} = {found[1]}", line.replace(found[0], name)]
    return [*lines[: number - 1], *own, *lines[number:]]


def _training_loop(lines: Sequence[str]) -> int:
    return next(number for number, line in enumerate(lines, 1) if re.search(r"in run\.(steps|epochs)\(", line))


def _renamed(lines: list[str], old: str, new: str, line: int) -> list[str]:
    """Return the lines with a variable renamed, from this line on, in its function and in nested functions."""
    tree = ast.parse("\n".join(lines))
    kinds = (ast.FunctionDef, ast.Module)
    around = [node for node in ast.walk(tree) if isinstance(node, kinds) and _has_line(node, line)]
    function = around[-1]
    within = [node for node in ast.walk(function) if isinstance(node, ast.FunctionDef) and node is not function]
    places = {
        (node.lineno, node.col_offset)
        for node in ast.walk(function)
        if isinstance(node, (ast.Name, ast.Attribute))
        and ast.unparse(node) == old
        and (node.lineno >= line or any(_has_line(each, node.lineno) for each in within))
    }
    made = list(lines)
    for row, column in sorted(places, reverse=True):
        text = made[row - 1].encode()
        made[row - 1] = (text[:column] + new.encode() + text[column + len(old.encode()) :]).decode()
    return [re.sub(rf"^(\s*)nonlocal {old}$", r"\1pass", each) for each in made]


def _has_line(node: ast.AST, line: int) -> bool:
    return isinstance(node, ast.Module) or node.lineno <= line <= (node.end_lineno or 0)  # type: ignore[attr-defined]
