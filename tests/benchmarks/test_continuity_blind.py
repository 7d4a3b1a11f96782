"""The scripts of the continuity benchmark: a lost state is found and named, a sound script is not called broken."""

from __future__ import annotations

import logging

import pytest

from benchmarks.continuity.axes import Trial, figures
from benchmarks.continuity.blind.cases import Axis, cases
from benchmarks.continuity.blind.measure import Rounds, resumed
from benchmarks.continuity.blind.noise import LEVELS
from benchmarks.continuity.blind.outcome import BlindOutcome
from benchmarks.continuity.report import trials_of


@pytest.fixture(autouse=True)
def level():
    """`resumed` sets it for its whole process."""
    log = logging.getLogger("segue")
    before = log.level
    yield
    log.setLevel(before)


@pytest.mark.matrix
def test_a_lost_state_acts_and_is_found_named_and_named_at_the_first_commit():
    outcome = resumed("itertools.count")[0]
    assert outcome.acts_within_window
    assert (outcome.is_found, outcome.is_named, outcome.is_named_at_commit, outcome.is_advised) == (True,) * 4


def test_a_sound_script_is_exact_again_and_again():
    first = next(case.name for case in cases(Axis.SOUND) if not case.is_alone)
    assert [outcome.verdict for outcome in resumed(first)] == ["exact", "exact"]


def test_there_are_at_least_sixty_kinds_of_unregistered_state_and_as_many_sound_scripts_as_asked():
    assert len(cases(Axis.UNREGISTERED)) >= 60
    assert sum(case.is_sound for case in cases()) >= 54


def test_the_report_counts_faults_within_the_window_and_names_what_was_missed():
    found = BlindOutcome("a", "late", "broken", fix="x", is_found=True, is_named=True, acts_after=3)
    late = BlindOutcome("b", "late", "exact", acts_after=20)
    missed = BlindOutcome("c", "late", "exact", acts_after=1)
    alarm = BlindOutcome("d", "late", "broken", is_sound=True, is_found=True)
    harmless = BlindOutcome("e", "late", "exact")
    report = figures(trials_of([found, late, missed, alarm, harmless]))
    row = report["axes"]["late"]
    assert (row["kinds"], row["detected_share"], row["missed"]) == (2, 0.5, ["c"])
    assert (row["later"]["kinds"], row["later"]["detected_share"], row["without_effect"]) == (1, 0.0, ["e"])
    assert (report["false_alarms"], row["called_broken"]) == (1, ["d"])


def test_a_kind_weighs_the_same_however_often_it_was_tried_and_foregone_kinds_count_apart():
    often = [Trial("a", "injected", is_found=number > 0, is_named=True) for number in range(4)]
    report = figures([*often, Trial("b", "injected"), Trial("c", "injected", is_found=True, is_foregone=True)])
    assert (report["kinds"], report["detected_share"], report["named_share"]) == (2, 0.375, 0.375)
    assert (report["foregone"]["kinds"], report["foregone"]["detected_share"]) == (1, 1.0)


@pytest.mark.soak
def test_under_noise_a_clean_resume_is_equivalent_and_lost_state_is_found():
    clean = resumed("noise of 1e-5", Rounds(noisy=2))
    assert [(outcome.is_sound, outcome.verdict) for outcome in clean] == [(True, "equivalent")] * 2
    faulty = resumed("itertools.count", Rounds(lost_every=1))
    axes = figures(trials_of([*clean, *faulty]))["axes"]
    assert axes["non-determinism"]["by_noise"].keys() == {"noise of 1e-5", *LEVELS}
    assert all(axes[name]["named_share"] == 1.0 for name in ("unregistered", "non-determinism"))
