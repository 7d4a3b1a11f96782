"""The JUnit XML of a drill: one case for each resume and one for the final state, with counts that agree."""

from __future__ import annotations

from datetime import UTC, datetime
from xml.etree import ElementTree

import pytest

from segue.records import Finding, Verdict, VerdictKind
from segue.verification.drill_comparison import NOTHING_RECORDED, Resume
from segue.verification.drill_report import DrillReport
from segue.verification.junit import junit_of, junit_of_error, summary_of
from tests.verification.drills import EXACT, KILL, NOTICE, UNVERIFIED

AT = datetime(2026, 11, 8, 4, 0, 7, tzinfo=UTC)
LOST = "optimizer was not restored: 8 of its 8 tensors differ"
BROKEN = Verdict(kind=VerdictKind.BROKEN, findings=(Finding(component="optimizer", channel="digest", sentence=LOST),))
AFTER_KILL = Resume(after="kill", step=30, verdict=EXACT)
AFTER_NOTICE = Resume(after="notice", step=61, verdict=UNVERIFIED, excuse=NOTHING_RECORDED)
AFTER_LOSS = Resume(after="kill", step=30, verdict=BROKEN)


def report(**fields) -> DrillReport:
    common = {
        "recipe": "train:build",
        "steps": 90,
        "kills": 1,
        "notices": 1,
        "identical": True,
        "verdict": VerdictKind.EXACT,
        "resumes": (AFTER_KILL, AFTER_NOTICE),
        "ended": "finished",
        "seconds": 12.5,
    }
    made = common | fields
    return DrillReport(verdicts=tuple(resume.verdict for resume in made["resumes"]), **made)


PASSED = report()
BROKE = report(
    notices=0,
    identical=False,
    verdict=VerdictKind.BROKEN,
    resumes=(AFTER_LOSS,),
    ended="broken: optimizer was not restored",
)
DIFFERS = report(identical=False, differing=("extra.ema", "rng.torch"))
MISSED = report(notices=0, missed=(NOTICE,), resumes=(AFTER_KILL,))
NEVER = report(kills=0, notices=0, missed=(KILL,), resumes=(), verdict=VerdictKind.UNVERIFIED)


def parsed(data: bytes) -> ElementTree.Element:
    """The suite, after checks that hold for any JUnit file by its schema."""
    assert data.startswith(b"<?xml version='1.0' encoding='utf-8'?>")
    root = ElementTree.fromstring(data)
    assert root.tag == "testsuites"
    (suite,) = root
    assert suite.tag == "testsuite"
    cases = suite.findall("testcase")
    assert [child.tag for child in suite] == ["testcase"] * len(cases)
    for node in (root, suite):
        assert int(node.attrib["tests"]) == len(cases)
        assert int(node.attrib["failures"]) == len(suite.findall("testcase/failure"))
        assert int(node.attrib["errors"]) == len(suite.findall("testcase/error"))
        assert int(node.attrib["skipped"]) == len(suite.findall("testcase/skipped")) == 0
    assert suite.attrib["timestamp"] == "2026-11-08T04:00:07", "ISO 8601 without a time zone"
    assert len({case.attrib["name"] for case in cases}) == len(cases), "names are unique"
    for case in cases:
        assert case.attrib.keys() == {"classname", "name", "time"}
        assert [child.tag for child in case] in ([], ["failure"], ["error"], ["system-out"], ["failure", "system-out"])
        for problem in (*case.findall("failure"), *case.findall("error")):
            assert problem.attrib.keys() == {"message", "type"}
            assert "Fix: " in problem.text
    assert sum(float(case.attrib["time"]) for case in cases) == pytest.approx(float(suite.attrib["time"]))
    return suite


@pytest.mark.parametrize(
    ("made", "failures", "code"),
    [(PASSED, 0, 0), (BROKE, 2, 3), (DIFFERS, 1, 3), (MISSED, 1, 1), (NEVER, 1, 1)],
    ids=["passed", "broken", "differs", "missed", "never"],
)
def test_a_drill_has_a_failure_exactly_when_it_did_not_pass(made, failures, code):
    suite = parsed(junit_of(made, at=AT))
    assert int(suite.attrib["tests"]) == len(made.resumes) + 1
    assert int(suite.attrib["failures"]) == failures
    assert (0 if made.passed else 3 if made.is_broken else 1) == code
    assert [case.attrib["name"] for case in suite][-1] == "identity"


def test_each_case_says_what_was_compared_and_each_failure_names_the_component_and_the_fix():
    resume, identity = parsed(junit_of(BROKE, at=AT)).findall("testcase")
    assert resume.attrib["name"] == "resume 1: from step 30 after a kill"
    failure = resume.find("failure")
    assert failure.attrib["type"] == "optimizer"
    assert LOST in failure.attrib["message"]
    assert "Fix: let optimizer restore all of its state" in failure.text
    assert "did not finish (broken: optimizer was not restored)" in identity.find("system-out").text
    after_notice = parsed(junit_of(PASSED, at=AT)).findall("testcase")[1]
    assert NOTHING_RECORDED in after_notice.find("system-out").text
    differs = parsed(junit_of(DIFFERS, at=AT)).findall("testcase")[-1].find("failure")
    assert differs.attrib["type"] == "extra.ema"
    assert "rng.torch differs at the end" in differs.text


def test_an_undisturbed_run_that_fails_is_an_error_and_no_failure():
    data = junit_of_error("a <b> & \x1b[31mc", "KeyError at mine.py: \x00 \ud800", fix="correct it.", at=AT, seconds=2)
    suite = parsed(data)
    assert (suite.attrib["errors"], suite.attrib["failures"]) == ("1", "0")
    assert suite.attrib["name"] == "a <b> & ?[31mc"


def test_the_summary_is_markdown_with_a_row_for_each_resume():
    text = summary_of(PASSED)
    assert text.startswith(
        "### segue drill: passed\n\n`train:build`, 90 steps: after 1 kill and 1 notice the final state"
    )
    assert "| 2 | 61 | notice | unverified: " in text
    assert "Fix: raise --steps" in summary_of(MISSED)
    assert summary_of(BROKE).startswith("### segue drill: failed")
    assert summary_of(NEVER).startswith("### segue drill: not proven")


@pytest.mark.parametrize(
    ("differing", "is_passed"),
    [(("model", "optimizer", "extra.ema", "progress"), True), (("model", "rng.torch"), False), (("data.next",), False)],
)
def test_noise_of_kernels_excuses_what_holds_floats_and_nothing_else(differing, is_passed):
    noisy = report(identical=False, differing=differing, noise={"loss": 1e-7})
    assert (noisy.passed, noisy.is_broken) == (is_passed, not is_passed)
    assert ("because kernels are not deterministic" in noisy.outcome) is is_passed
    assert [problem.component for problem in noisy.problems] == ([] if is_passed else list(differing))
