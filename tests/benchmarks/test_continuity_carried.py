"""The axis of carried values: programs that lose a variable at a resume, what is said of it, and the fix as it says."""

from __future__ import annotations

import pytest

from benchmarks.continuity.carried.kind import Kind, in_steps
from benchmarks.continuity.carried.measure import KINDS, SOUND, figures, measure
from benchmarks.continuity.carried.trial import Outcome, followed

LOST = (
    "sum of an epoch in a function",
    "hidden state of an RNN",
    "batch ahead at the top level",
    "variable of a closure",
    "attribute of the trainer",
    "exact sum of losses",
    "phase of an enumeration",
    "data class with slots that is replaced",
    "list of data classes",
    "count in an assignment expression",
    "parsed arguments that a function changes",
    "namespace whose list a function fills",
    "moving average in a namespace",
    "namespace of the script",
    "namespace in a namespace, by setattr",
    "object in a namespace",
    "object in a tuple",
    "list of callbacks in a namespace",
)
KEPT = (
    "nanoGPT",
    "ImageNet example with meters",
    "sums of an epoch that run.carry holds",
    "functions made when they are first needed",
    "start, rate and file of a log line",
    "rates changed by hand at milestones of the step",
    "arguments with a best loss and a count for a log line",
    "namespace of the model, the optimizer and a loss",
    "namespace whose count is registered",
    "object in a tuple that is registered, and one made anew in a namespace",
    "meters with properties, in a namespace and in a tuple, that are only printed",
)


def kind_of(name: str) -> Kind:
    return next(kind for kind in (*KINDS, *SOUND) if kind.name == name)


@pytest.mark.parametrize("name", LOST[:2] + tuple(pytest.param(name, marks=pytest.mark.matrix) for name in LOST[2:]))
def test_a_carried_value_is_named_at_the_first_commit_and_at_the_resume(name):
    kind = kind_of(name)
    (outcome,) = measure([kind], resumes=1, jobs=1)
    assert not outcome.problem
    assert (outcome.is_found, outcome.is_named, outcome.is_named_first) == (True, True, True), outcome
    assert outcome.is_named_at_commit, outcome.commits
    if name != "attribute of the trainer":
        assert outcome.is_fix_enough, (outcome.commits, outcome.fixed)


@pytest.mark.parametrize("name", KEPT[:1] + tuple(pytest.param(name, marks=pytest.mark.matrix) for name in KEPT[1:]))
def test_a_program_that_only_shows_what_it_carries_or_keeps_it_is_exact_and_nothing_is_said(name):
    (outcome,) = measure([kind_of(name)], resumes=1, jobs=1)
    assert (outcome.verdicts, outcome.commits, outcome.problem) == (("exact",), (), "")


def test_an_object_that_raises_when_it_is_asked_for_its_class_ends_no_attempt():
    lazy = """
    class Lazy:
        @property
        def __class__(self):
            raise RuntimeError("not configured")
    """
    before = "lazy, parts, ns = Lazy(), (model, Lazy()), SimpleNamespace(lazy=Lazy(), shown=0.0)"
    body = "ns.shown = loss.item()\nprint(ns.shown)"
    (outcome,) = measure([in_steps("lazy", top=lazy, before=before, body=body)], resumes=1, jobs=1)
    assert (set(outcome.verdicts), outcome.commits, outcome.problem) == ({"exact"}, (), "")


def test_the_axis_has_at_least_sixty_kinds_and_twelve_sound_programs():
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= 60
    assert len({kind.name for kind in SOUND}) == len(SOUND) >= 12


def test_a_fix_is_followed_as_it_is_written():
    source = "def f():\n    n = 0\n    def g():\n        nonlocal n\n        n += 1\n"
    source += "    for s in run.steps(9):\n        g()\n"
    fix = 'write `k = run.carry("k", n=0)` right before the loop in line 6, and from there on `k.n` for `n`'
    wanted = "def f():\n    n = 0\n    def g():\n        pass\n        k.n += 1\n"
    wanted += '    k = run.carry("k", n=0)\n    for s in run.steps(9):\n        g()\n'
    assert followed(fix, source) == wanted
    with pytest.raises(ValueError, match="look elsewhere"):
        followed("look elsewhere", source)


def test_a_value_that_is_lost_without_a_word_counts_and_so_does_an_alarm_about_a_sound_program():
    lost = Outcome("a", ("exact",), ("exact: 3",), True, False, False, False, False)
    named = Outcome("b", ("unverified",), ("x",), True, True, True, True, True, is_fix_enough=True)
    alarm = Outcome("c", ("exact",), ("exact: 3",), False, False, False, False, False, commits=("y: was 0",))
    found = figures([lost, named], [alarm])
    assert (found["found_share"], found["exact_without_a_word"], found["false_alarms"]) == (0.5, 1, 1)
