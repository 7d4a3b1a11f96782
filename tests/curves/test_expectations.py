"""A curve with a fault fails the expectation that is about it, by name and step; a clean one passes all."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import pandas as pd
import pytest

from segue.continuity.agreement import TOLERANCES
from segue.continuity.recipe_diff import CONFIG
from segue.curves.expectations import SCHEDULE_TOLERANCE, check_curve, check_frame
from segue.curves.repeated_steps import repeats
from segue.errors import NoCheckpointError, OutputError
from segue.records import Finding, Verdict, VerdictKind

LOST_PART = {"as many rows as steps", "contiguous steps"}
NAMES = [
    "as many rows as steps",
    "contiguous steps",
    "unique keys",
    "one accepted attempt",
    "finite loss",
    "learning rate repeats",
    "loss repeats",
    "grad_norm repeats",
    "param_norm repeats",
]


def change(frame, step, **values):
    """The accepted row of a step, changed."""
    for column, value in values.items():
        frame.loc[(frame["step"] == step) & ~frame["superseded"], column] = value
    return frame


def of_step(frame, step, column):
    return frame.loc[(frame["step"] == step) & ~frame["superseded"], column].item()


def without(frame, *steps):
    return frame[~frame["step"].isin(steps)].reset_index(drop=True)


def threefold_loss_after_the_resume(frame):
    for step in range(21, 61):
        change(frame, step, loss=3 * of_step(frame, step, "loss"))
    return frame


def a_gap_of_three_rows(frame):
    return without(frame, 41, 42, 43)


def the_first_rows_missing(frame):
    return without(frame, 1, 2)


def the_last_row_missing(frame):
    return without(frame, 60)


def a_doubled_step(frame):
    row = frame[(frame["step"] == 45) & ~frame["superseded"]]
    return pd.concat([frame, row], ignore_index=True)


def a_loss_that_is_no_number(frame):
    return change(frame, 25, loss=math.nan)


def an_infinite_loss(frame):
    return change(frame, 25, loss=math.inf)


def another_learning_rate(frame):
    return change(frame, 23, lr=math.nextafter(of_step(frame, 23, "lr"), 1))


def another_bit_in_the_parameter_norm(frame):
    return change(frame, 25, param_norm=math.nextafter(of_step(frame, 25, "param_norm"), 9))


def another_bit_in_the_gradient_norm_of_a_superseded_step(frame):
    lost = (frame["step"] == 30) & frame["superseded"]
    frame.loc[lost, "grad_norm"] = math.nextafter(frame.loc[lost, "grad_norm"].item(), 99)
    return frame


def two_accepted_attempts(frame):
    frame.loc[frame["step"] == 25, "superseded"] = False
    return frame


# fault, expectations that fail, the first step named (None: it is not about steps)
FAULTS = [
    (threefold_loss_after_the_resume, {"loss repeats"}, 21),
    (a_gap_of_three_rows, LOST_PART, 44),
    (the_first_rows_missing, LOST_PART, 3),
    (the_last_row_missing, {"as many rows as steps"}, None),
    (a_doubled_step, LOST_PART | {"unique keys"}, 45),
    (a_loss_that_is_no_number, {"finite loss", "loss repeats"}, 25),
    (an_infinite_loss, {"finite loss", "loss repeats"}, 25),
    (another_learning_rate, {"learning rate repeats"}, 23),
    (another_bit_in_the_parameter_norm, {"param_norm repeats"}, 25),
    (another_bit_in_the_gradient_norm_of_a_superseded_step, {"grad_norm repeats"}, 30),
    (two_accepted_attempts, LOST_PART | {"one accepted attempt"}, 25),
]


def outcomes(report):
    return {item.name: item.outcome for item in report.expectations}


@pytest.mark.matrix
def test_a_clean_curve_meets_every_expectation(resumed):
    report = check_curve(resumed.log)
    assert [item.name for item in report.expectations] == ["files as committed", *NAMES]
    assert set(outcomes(report).values()) == {"met"}
    assert report.passed
    # Witness rows of 10, 20 and 40; eight replayed ones of 20; ten superseded ones.
    assert (report.first_step, report.last_step, report.rows) == (1, 60, 60)
    assert report.repeated_rows >= 8 + 8 + 10


@pytest.mark.parametrize(
    ("fault", "failing", "step"),
    [FAULTS[0], *(pytest.param(*fault, marks=pytest.mark.matrix) for fault in FAULTS[1:])],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_fault_fails_its_expectation_and_names_the_step(resumed, fault, failing, step):
    report = check_frame(fault(resumed.frame()), resumed.history, run_id="nightly")
    assert {item.name for item in report.failed} == failing
    assert not report.passed
    if step is not None:
        named = [item for item in report.failed if item.steps]
        assert named
        assert min(item.steps[0] for item in named) == step
        assert all(f"step {item.steps[0]}" in item.sentence for item in named)


def test_a_failed_expectation_names_the_fault_its_first_step_and_the_fix(resumed):
    report = check_frame(threefold_loss_after_the_resume(resumed.frame()), resumed.history, run_id="nightly")
    (failed,) = report.failed
    assert failed.sentence.startswith("FAILED: steps executed twice have different losses (first: step 21")
    assert "Likely cause: weights, a random stream, the data or the code changed." in failed.sentence


def elsewhere(history, **fields):
    """The same history with the second attempt in another environment."""
    first, second = history.attempts
    there = second.claim.environment.model_copy(update=fields)
    moved = replace(second, claim=second.claim.model_copy(update={"environment": there}))
    return replace(history, attempts=(first, moved))


def exceeding(frame, history):
    """The channels in which some repeated step differs by more than is allowed, without Great Expectations."""
    again = repeats(frame, history)
    found = {name for name in TOLERANCES if (again[f"{name}_difference"] > again[f"{name}_allowed"]).any()}
    return found | ({"lr"} if (again["lr"] != again["lr_before"]).any() else set())


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("column", "factor", "differs"),
    [
        ("loss", 1 + 0.9e-4, False),
        ("loss", 1 + 1.1e-4, True),
        ("grad_norm", 1 + 0.9e-3, False),
        ("grad_norm", 1 + 1.1e-3, True),
        ("param_norm", 1 + 0.9e-3, False),
        ("param_norm", 1 + 1.1e-3, True),
        ("lr", 1 + 1e-15, True),
    ],
)
def test_in_another_environment_the_verdicts_tolerances_hold(resumed, column, factor, differs):
    frame = resumed.frame()
    change(frame, 25, **{column: factor * of_step(frame, 25, column)})
    assert exceeding(frame, elsewhere(resumed.history, threads=7)) == ({column} if differs else set())
    assert exceeding(frame, resumed.history) == {column}


@pytest.mark.parametrize(("step", "differs"), [(28, True), (29, False)])
def test_tolerances_are_asked_for_eight_steps_after_the_fork_and_no_longer(resumed, step, differs):
    frame = resumed.frame()
    change(frame, step, loss=3 * of_step(frame, step, "loss"))
    assert exceeding(frame, elsewhere(resumed.history, threads=7)) == ({"loss"} if differs else set())
    assert exceeding(frame, resumed.history) == {"loss"}


def test_with_another_number_of_ranks_only_the_learning_rate_must_be_the_same(resumed):
    history = elsewhere(resumed.history, world_size=2)
    frame = change(resumed.frame(), 25, loss=9.0, grad_norm=9.0, param_norm=9.0)
    assert exceeding(frame, history) == set()
    report = check_frame(change(frame, 25, lr=0.5), history, run_id="nightly")
    assert [item.name for item in report.failed] == ["learning rate repeats"]


def judged(history, **fields):
    """The same history with another verdict about the second attempt's resume."""
    (entry,) = history.resumes
    return replace(history, resumes=(entry.model_copy(update={"verdict": Verdict(**fields)}),))


@pytest.mark.parametrize(
    ("kind", "channel", "compared"),
    [
        (VerdictKind.UNVERIFIED, "setup", False),
        (VerdictKind.UNVERIFIED, "time", True),
        (VerdictKind.EXACT, "setup", True),
    ],
)
def test_after_a_change_on_purpose_that_shows_nothing_is_compared(resumed, kind, channel, compared):
    finding = Finding(component="setup.hyperparameters", channel=channel, sentence="a setting changed")
    history = judged(resumed.history, kind=kind, findings=(finding,))
    frame = change(resumed.frame(), 25, loss=9.0, lr=0.5)
    assert exceeding(frame, history) == ({"loss", "lr"} if compared else set())


def with_other_config(history):
    def of(checkpoint):
        if checkpoint.ref.attempt_id.startswith("seg000-"):
            return checkpoint
        components = checkpoint.manifest.components | {CONFIG: "another"}
        return replace(checkpoint, manifest=checkpoint.manifest.model_copy(update={"components": components}))

    return replace(history, checkpoints=tuple(of(checkpoint) for checkpoint in history.checkpoints))


@pytest.mark.parametrize(("step", "compared"), [(28, True), (29, False)])
def test_with_another_config_superseded_steps_are_compared_as_far_as_the_verdict_was(resumed, step, compared):
    frame = change(resumed.frame(), step, loss=9.0, lr=0.5)
    assert exceeding(frame, resumed.history) == {"loss", "lr"}
    assert exceeding(frame, with_other_config(resumed.history)) == ({"loss", "lr"} if compared else set())


def unsealed(history):
    return replace(history, checkpoints=tuple(replace(checkpoint, rows=()) for checkpoint in history.checkpoints))


def schedule(step):
    return 0.01 * (1 + math.cos(math.pi * (step - 1) / 500)) / 2


def test_a_given_schedule_is_held_against_every_step(resumed):
    frame = resumed.frame()
    change(frame, 59, lr=(1 + SCHEDULE_TOLERANCE / 2) * of_step(frame, 59, "lr"))
    change(frame, 60, lr=(1 + SCHEDULE_TOLERANCE * 2) * of_step(frame, 60, "lr"))
    # With no witness of these steps nothing but the schedule tells.
    report = check_frame(frame, unsealed(resumed.history), run_id="nightly", schedule=schedule)
    assert [(item.name, item.steps) for item in report.failed] == [("learning rate as planned", (60,))]


def test_where_no_step_is_on_record_twice_nothing_was_measured_and_the_report_says_so(resumed):
    frame = resumed.frame()
    alone = frame[~frame["superseded"]].reset_index(drop=True)
    report = check_frame(alone, unsealed(resumed.history), run_id="nightly")
    found = outcomes(report)
    assert [name for name in NAMES if found[name] == "not measured"] == NAMES[5:]
    assert report.passed
    assert "not measured, so not passed" in report.expectations[-1].sentence


def test_a_curve_without_a_row_fails_by_the_log(resumed):
    report = check_frame(resumed.frame().iloc[:0], resumed.history, run_id="nightly")
    assert [item.name for item in report.failed] == ["as many rows as steps"]
    assert report.rows == 0


def test_a_run_without_a_checkpoint_has_nothing_to_check(make_spec, open_log):
    with pytest.raises(NoCheckpointError):
        check_curve(open_log(make_spec()))


@pytest.mark.matrix
def test_data_docs_say_what_failed_in_the_folder_given(resumed, tmp_path):
    report = check_frame(
        threefold_loss_after_the_resume(resumed.frame()), resumed.history, run_id="nightly", docs=tmp_path / "a" / "b"
    )
    assert report.docs == str(tmp_path / "a" / "b" / "index.html")
    assert "&#10007; failed" in (tmp_path / "a" / "b" / "index.html").read_text()
    pages = [path.read_text() for path in (tmp_path / "a" / "b" / "validations").rglob("*.html")]
    assert len(pages) == 2
    assert any("Steps executed twice have equal losses" in page for page in pages)


def test_a_docs_folder_that_cannot_be_is_refused(resumed, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="cannot be written"):
        check_curve(resumed.log, docs=tmp_path / "file" / "docs")
    assert (tmp_path / "file").read_text() == "mine"


def test_the_check_leaves_the_callers_surroundings_alone(resumed, monkeypatch, capfd):
    import great_expectations as gx
    from great_expectations.data_context.data_context.context_factory import project_manager

    own = gx.get_context(mode="ephemeral")
    capfd.readouterr()
    monkeypatch.setenv("GX_ANALYTICS_ENABLED", "as it was")
    check_curve(resumed.log)
    assert os.environ["GX_ANALYTICS_ENABLED"] == "as it was"
    monkeypatch.delenv("GX_ANALYTICS_ENABLED")
    check_curve(resumed.log)
    assert "GX_ANALYTICS_ENABLED" not in os.environ
    assert project_manager.get_current_project() is own
    assert capfd.readouterr() == ("", "")
