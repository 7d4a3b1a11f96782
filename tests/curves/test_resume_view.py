"""A resume as a picture: what was before, what the witness has, what the resume made of it."""

from __future__ import annotations

import pytest

from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.curves.resume_plot import draw_resume, resume_point_of, title
from segue.errors import NoResumeError
from segue.records import Heartbeat, VerdictKind
from segue.spec import RunSpec
from tests.continuity.test_faulty_resumes import resumed as resume_faultily
from tests.support.resumed_run import read_resumed

pytestmark = pytest.mark.matrix

PNG = b"\x89PNG\r\n\x1a\n"


def test_witness_and_replay_lie_over_each_other_and_the_replay_goes_on(resumed):
    resume_point = resume_point_of(resumed.log)
    assert (resume_point.segment, resume_point.attempt, resume_point.parent.step) == (1, 1, 20)
    assert resume_point.verdict.kind is VerdictKind.EXACT
    assert list(resume_point.before["step"]) == list(range(1, 21))
    assert list(resume_point.witness["step"]) == list(range(21, 29))
    assert list(resume_point.replay["step"]) == list(range(21, 45))
    assert resume_point.replay.head(8).equals(resume_point.witness)
    assert list(resume_point_of(resumed.log, steps=3).before["step"]) == [18, 19, 20]


def test_the_picture_is_a_png_and_says_the_verdict(resumed):
    assert draw_resume(resumed.log).startswith(PNG)
    words = title(resume_point_of(resumed.log), run_id="nightly")
    assert words.startswith("nightly: segment 1 resumed from step 20; exact: ")
    assert words.endswith(" components and 8 steps compared")


def test_a_segment_without_a_resume_is_refused_with_those_that_have_one(resumed, make_spec, open_log):
    assert resume_point_of(resumed.log, segment=1).segment == 1
    there = r"choose one of 1\.1 \(segment\.attempt\)\."
    with pytest.raises(NoResumeError, match=rf"^segment 0 of run nightly has no resume .* {there}"):
        draw_resume(resumed.log, segment=0)
    with pytest.raises(NoResumeError, match=rf"^segment 1 attempt 2 of run nightly has no resume .* {there}"):
        draw_resume(resumed.log, segment=1, attempt=2)
    with pytest.raises(
        NoResumeError, match=r"^run tiny has no resume .* Fix: none needed: the run has no other resume\."
    ):
        draw_resume(open_log(make_spec()))


@pytest.fixture(scope="module")
def broken(fork_server, tmp_path_factory):
    """A resume that lost an unsaved counter, stopped by its verdict."""
    folder = tmp_path_factory.mktemp("broken")
    common = {"run_id": "tiny", "threads": 1, "store": {"url": str(folder / "store")}}
    common |= {"checkpoints": {"every_steps": 10, "staging_buffers": 2}, "liveness": {"heartbeat_seconds": 0.05}}

    def make_spec(**fields):
        return RunSpec.parse(common | fields)

    def open_log(spec):
        return open_run(spec, clock=SystemClock())

    _, log, _ = resume_faultily(fork_server, make_spec, open_log, folder, "unregistered_counter")
    return log


def test_without_a_seal_the_witness_is_what_the_last_heartbeat_carried(resumed, tmp_path):
    run = resumed.copy(tmp_path / "store")
    (seal,) = (s for s in run.log.slots if s.entry.kind == "seal" and s.entry.checkpoint.step == 20)
    (run.store / "nightly" / "log" / f"{seal.number:08d}.json").unlink()
    (beat_file,) = run.store.glob("nightly/attempts/seg000-*/heartbeat.json")
    beat = Heartbeat.model_validate_json(beat_file.read_bytes())
    beat_file.write_text(beat.model_copy(update={"rows": seal.entry.rows[:3]}).model_dump_json())
    assert list(resume_point_of(read_resumed(run.store).log).witness["step"]) == [21, 22, 23]
    beat_file.unlink()
    assert list(resume_point_of(read_resumed(run.store).log).witness["step"]) == []
    assert draw_resume(read_resumed(run.store).log).startswith(PNG)


def test_a_broken_resume_is_drawn_from_what_its_verdict_kept(broken):
    resume_point = resume_point_of(broken)
    assert resume_point.verdict.kind is VerdictKind.BROKEN
    assert len(resume_point.witness) == len(resume_point.replay) >= 1
    assert list(resume_point.replay["step"]) == list(resume_point.witness["step"])
    differing = resume_point.replay["step"][resume_point.replay["loss"] != resume_point.witness["loss"]]
    assert differing.iloc[0] == resume_point.verdict.findings[0].step
    assert draw_resume(broken).startswith(PNG)
    assert "broken" in title(resume_point, run_id="tiny")
