"""Writes a drill as JUnit XML for CI systems: one test case for each resume, and one test case for the final state."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple
from xml.etree import ElementTree

from segue.markup import Markup, blocks, bullets, code, heading, inline, table
from segue.records import VerdictKind
from segue.verification.drill_comparison import Problem, problems_of
from segue.verification.drill_report import DrillReport

_SUITE = "segue drill"


class _Case(NamedTuple):
    name: str
    output: str
    problems: tuple[Problem, ...] = ()
    is_error: bool = False
    """Whether the drill could not run the test case. If the case passed or failed, the value is False."""


def junit_of(report: DrillReport, *, at: datetime) -> bytes:
    """Return the XML of a completed drill. `at` is the time at which the drill began."""
    return _document(report.recipe, list(_cases(report)), seconds=report.seconds, at=at)


def junit_of_error(workload: str, message: str, *, fix: str, at: datetime, seconds: float) -> bytes:
    """Return the XML of a drill that could not be completed, because its undisturbed run failed."""
    problem = Problem(component="undisturbed run", sentence=message, fix=fix)
    return _document(workload, [_Case("undisturbed run", "", (problem,), is_error=True)], seconds=seconds, at=at)


def _cases(report: DrillReport) -> Iterator[_Case]:
    for number, resume in enumerate(report.resumes, 1):
        name = f"resume {number}: from step {resume.step} after a {resume.after}"
        yield _Case(name, resume.sentence, problems_of([resume], ()))
    found = [p for p in report.problems if p not in problems_of(report.resumes, ())]
    if not report.ends_alike and not found:
        # A resume already reports the component, but the comparison of the final states has failed too.
        found = list(problems_of((), report.differing)) or list(report.problems[:1])
    yield _Case("identity", f"after {report.disturbances} {report.outcome}", tuple(found))


def _document(workload: str, cases: list[_Case], *, seconds: float, at: datetime) -> bytes:
    errors = sum(bool(case.problems) and case.is_error for case in cases)
    failures = sum(bool(case.problems) and not case.is_error for case in cases)
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": str(errors), "skipped": "0"}
    time = {"time": f"{seconds:.3f}"}
    root = ElementTree.Element("testsuites", {"name": _SUITE} | counts | time)
    stamp = at.strftime("%Y-%m-%dT%H:%M:%S")
    suite = ElementTree.SubElement(root, "testsuite", {"name": _clean(workload)} | counts | time | {"timestamp": stamp})
    for case in cases:
        facts = {"classname": _clean(f"segue.drill.{workload}"), "name": _clean(case.name)}
        # Only the time of the whole drill is known; it is assigned to the last case, so that the sum is right.
        element = ElementTree.SubElement(suite, "testcase", facts | (time if case is cases[-1] else {"time": "0.000"}))
        if case.problems:
            first = case.problems[0]
            kind = {"message": _clean(first.sentence), "type": _clean(first.component)}
            problem = ElementTree.SubElement(element, "error" if case.is_error else "failure", kind)
            problem.text = _clean("\n".join(f"{p.sentence.rstrip('.')}. Fix: {p.fix}" for p in case.problems))
        if case.output:
            ElementTree.SubElement(element, "system-out").text = _clean(case.output)
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _clean(text: str) -> str:
    """Return the text with `?` in place of characters that XML 1.0 does not permit. A traceback may contain them."""
    return "".join(letter if letter in "\t\n\r" or _is_permitted(ord(letter)) else "?" for letter in text)


def _is_permitted(code: int) -> bool:
    return 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000


def summary_of(report: DrillReport) -> str:
    """Return the drill as Markdown, for the summary page of a CI job."""
    mark = "passed" if report.passed else ("failed" if report.is_broken else "not proven")
    outcome = inline(f", {report.steps} steps: after {report.disturbances} {report.outcome}.")
    rows = [(number, one.step, one.after, one.sentence) for number, one in enumerate(report.resumes, 1)]
    notes = [f"{p.sentence.rstrip('.')}. Fix: {p.fix}" for p in report.problems]
    if report.verdict is VerdictKind.EQUIVALENT:
        notes.append("The resumes are equal only within tolerances, because the environments differ.")
    shown = blocks(
        heading(f"segue drill: {mark}", level=3),
        Markup(f"{code(report.recipe)}{outcome}"),
        table(("resume", "from step", "after", "verdict"), rows),
        bullets(notes),
    )
    return f"{shown}\n"


def summary_of_error(workload: str, message: str, *, fix: str) -> str:
    """Return a drill that could not be completed as Markdown."""
    said = Markup(f"{code(workload)} fails without a kill: {inline(message.rstrip('.'))}. Fix: {inline(fix)}")
    return f"{blocks(heading('segue drill: not made', level=3), said)}\n"
