"""Names from data, specs and exceptions on every page that segue publishes: shown as text."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from segue.curves.expectations import CurveReport
from segue.interop.export_readme import readme, readme_of_dcp
from segue.records import Capacity, Finding, StopReason, Verdict, VerdictKind
from segue.reports.cost_report import cost_report
from segue.reports.page import RunView, page
from segue.retraining import pages
from segue.retraining.gate.record import Finding as Unmet
from segue.retraining.gate.record import GateResult
from segue.retraining.history import Models
from segue.retraining.model_record import Artifact, Candidate, Comparison, Interval, SlotStart, Training
from segue.retraining.models import ModelsLog
from segue.retraining.spec import MissingPeriod, Window, WindowFile
from segue.stores import LocalStore
from segue.verification.drill_comparison import Problem, Resume
from segue.verification.junit import summary_of, summary_of_error
from segue.verification.verification_page import verifications_page
from tests.support.histories import Logbook, make_spec
from tests.verification.drills import SLOT, red
from tests.verification.test_junit import report

EVIL = (
    "a | b`\n\n# Approved by the gate\n<img src=x onerror=alert(1)>[click](javascript:alert(1))\n\n| x | y |\n|---|---|"
)
NUMBER = Interval(value=1.0, low=0.5, high=1.5)


def require_inert(text: str) -> None:
    """Nothing of the hostile name has become a part of the page."""
    assert "Approved by the gate" in text, "the name is on the page"
    assert "<img" not in text
    assert "](javascript" not in text.replace("\\](javascript", "")
    assert not re.search(r"^\s*#+ Approved", text, re.MULTILINE)
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if re.fullmatch(r"\|(\s*-{3}\s*\|)+", line):
            columns = cells(lines[number - 1])
            for row in lines[number + 1 :]:
                if not row.startswith("|"):
                    break
                assert cells(row) == columns, row


def cells(row: str) -> int:
    return len(re.findall(r"(?<!\\)\|", row.replace("\\\\", "")))


def gate() -> GateResult:
    found = Unmet(is_warning=False, about=EVIL, expectation=EVIL, observed=EVIL, places=(EVIL, EVIL))
    return GateResult(outcome="failed", expectations=1, rows=10, findings=(found,), profiles={})


def start() -> SlotStart:
    file = WindowFile(path=EVIL, sha256="0" * 64, size_bytes=1, rows=1, period=EVIL, is_held_back=False)
    window = Window(files=(file,), missing=(MissingPeriod(period=EVIL, pattern=EVIL),))
    return SlotStart(slot=SLOT, window=window, changes=(EVIL,), gate=gate(), docs=EVIL)


def models(tmp_path) -> Models:
    comparison = Comparison(metric=EVIL, candidate=NUMBER, in_service=NUMBER, gain=NUMBER, groups={EVIL: 0.1})
    training = Training(segments=1, preemptions=0, verdicts={EVIL: 1}, cost=1.0, currency=EVIL, hashes={EVIL: EVIL})
    file = Artifact(key=EVIL, sha256=EVIL, size_bytes=1)
    facts = {"slot": SLOT, "run_id": EVIL, "step": 1, "attempt_id": EVIL, "training": training, "is_promoted": True}
    candidate = Candidate(weights=file, program=file, comparisons=(comparison,), compared_with=None, why=EVIL, **facts)
    log = ModelsLog(LocalStore(tmp_path / "store").create(), "flights")
    log.open_slot(start())
    return log.add(candidate)


def test_the_check_of_data():
    require_inert("\n".join(pages.gate_lines(gate())))
    require_inert(pages.gate_page(start(), name=EVIL, zone=UTC, docs=EVIL))


def test_the_card_and_the_history_of_a_model(tmp_path):
    found = models(tmp_path)
    require_inert(pages.card(found, 1))
    require_inert(pages.history_page(found, zone=UTC).replace("a | b", "a b"))


def test_the_page_of_a_run():
    book = Logbook(make_spec(pools={"spot": "x | <img src=x onerror=alert(1)>/b`"}))
    plan = book.plan()
    name = book.claim(plan)
    ref = book.commit(name, 10)
    book.report(plan, StopReason.LOST, attempt_id=name, note=EVIL)
    book.quarantine(ref, reason=EVIL)
    from segue.runlog.entries import DecisionEntry, VerdictEntry

    finding = Finding(component=EVIL, channel="digest", sentence=EVIL, fix=EVIL)
    verdict = Verdict(kind=VerdictKind.BROKEN, findings=(finding,))
    book.write(VerdictEntry, attempt_id=name, parent=ref, verdict=verdict)
    book.write(DecisionEntry, plan=None, action="failed", reason=EVIL)
    cost = cost_report(book.spec, book.history)
    view = RunView(book.spec, book.history, cost, book.now, waiting=EVIL, store_trouble=EVIL, unguarded=EVIL)
    require_inert(page(view))


def test_the_check_of_a_curve():
    item = SimpleNamespace(name=EVIL, outcome="failed", sentence=EVIL)
    require_inert(CurveReport.in_markdown(SimpleNamespace(sentence=EVIL, expectations=(item,))))


def test_verifications_and_drills():
    verdict = Verdict(
        kind=VerdictKind.BROKEN, findings=(Finding(component=EVIL, channel="digest", sentence=EVIL, fix=EVIL),)
    )
    resume = Resume(after="kill", step=30, verdict=verdict)
    problem = Problem(component=EVIL, sentence=EVIL, fix=EVIL)
    one = red().model_copy(update={"workload": EVIL, "reason": EVIL, "problems": (problem,), "resumes": (resume,)})
    require_inert(verifications_page([one], store=EVIL, now=datetime(2026, 12, 1, tzinfo=UTC)))
    drill = report(recipe=EVIL, resumes=(resume,), verdict=VerdictKind.BROKEN, identical=False, ended=EVIL)
    require_inert(summary_of(drill))
    require_inert(summary_of_error(EVIL, EVIL, fix=EVIL))


@pytest.mark.parametrize("as_torch", [True, False])
def test_the_readme_of_an_export(as_torch):
    head = readme({f"extra.{EVIL}": (f"extra.{EVIL}.json",)}, as_torch=as_torch).partition("```python")[0]
    require_inert(head)
    require_inert(readme_of_dcp([EVIL]).partition("```python")[0])


def test_a_pool_of_on_demand_with_a_hostile_name_is_a_cell():
    book = Logbook(make_spec(pools={"on_demand": "x|y<b>/z"}))
    book.attempt(StopReason.LOST, Capacity.ON_DEMAND, commit=10, seconds=60.0)
    view = RunView(book.spec, book.history, cost_report(book.spec, book.history), book.now)
    assert "<b>" not in page(view)
