"""What a program loops over is recorded: a resume that would count from elsewhere is refused, and says why."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest

from segue.errors import SessionError
from segue.interop.fork import fork_run
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.trainer.programs import own_files as own_files_module
from segue.trainer.programs.loop_range import LoopRange, RangeRecord, require_continued
from segue.trainer.programs.own_files import OwnFiles, own_files

AT = datetime(2026, 11, 27, 12, tzinfo=UTC)

WITH_SNAPSHOT = """
import os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import segue

run, snapshot = segue.session(), sys.argv[1]
torch.manual_seed(0)
x = torch.randn(40, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
done = 0
if os.path.exists(snapshot):
    kept = torch.load(snapshot)
    model.load_state_dict(kept["model"])
    done = kept["done"]
run.track(model=model, optimizer=optimizer)


def train(a, b):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(a), b)
    loss.backward()
    optimizer.step()
    run.report(loss=loss)


def keep(done):
    torch.save({"model": model.state_dict(), "done": done}, snapshot)


"""
EPOCHS = """
for epoch in run.epochs(LOOP):
    for a, b in run.batches(loader):
        train(a, b)
    keep(epoch + 1)
"""
STEPS = """
batches = run.batches(loader)
for step in run.steps(LOOP):
    train(*next(batches))
    keep(step + 1)
"""
IS_THERE = "if os.path.exists(snapshot):"


@pytest.fixture
def resumed(fork_server, make_spec, open_log, tmp_path):
    """A function: train a script to step 12, change it, start it again; the report of that, and the history."""
    script = tmp_path / "train.py"

    def resumed(source, *, then=None, options=(), **fields):
        script.write_text(source)
        command = ["python", str(script), str(tmp_path / "snapshot.pt")]
        common = {"recipe": None, "steps": 1000, "continuity": {"rehearsal": "off", "witness_steps": 2}}
        first = make_spec(**common, program={"command": command}, segment={"steps": 12})
        runlog = open_log(first)
        assert fork_server.run_attempt(runlog, first).stop_reason is StopReason.BOUND
        script.write_text(then or source)
        again = make_spec(**common | fields, program={"command": [*command, *options]})
        report = fork_server.run_attempt(runlog, again)
        return report, read_history(runlog.reload())

    return resumed


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            EPOCHS.replace("LOOP", "done, 8"),
            "over run.epochs(2, 8), but at the checkpoint it looped over run.epochs(8)",
        ),
        (EPOCHS.replace("LOOP", "8 - done"), "over run.epochs(6), but at the checkpoint it looped over run.epochs(8)"),
        (EPOCHS.replace("LOOP", "8 + done"), "over run.epochs(10), but at the checkpoint it looped over run.epochs(8)"),
        (
            STEPS.replace("LOOP", "done, 40"),
            "over run.steps(14, 40), but at the checkpoint it looped over run.steps(40)",
        ),
        (STEPS.replace("LOOP", "40 - done"), "over run.steps(26), but at the checkpoint it looped over run.steps(40)"),
    ],
)
def test_a_program_that_begins_where_its_own_snapshot_ends_is_refused_with_the_file(resumed, tmp_path, source, said):
    snapshot = tmp_path / "snapshot.pt"
    report, history = resumed(WITH_SNAPSHOT + source)
    assert (report.stop_reason, report.failure.type) == (StopReason.FAILED, "SessionError")
    assert said in report.failure.message
    assert f": the program has read {snapshot}, written by this run" in report.failure.message
    assert history.finish_reason is None
    assert report.failure.message.endswith(
        f"Fix: let it read {snapshot} only `if not run.is_active`, and start the run with --accept setup.code; "
        f"{said.rpartition(' over ')[2]} then continues by itself."
    )


@pytest.mark.matrix
@pytest.mark.parametrize("loop", [EPOCHS.replace("LOOP", "done, 8"), STEPS.replace("LOOP", "done, 40")])
def test_what_the_refusal_advises_makes_the_resume_exact(resumed, loop):
    source = WITH_SNAPSHOT + loop
    guarded = source.replace(IS_THERE, "if not run.is_active and os.path.exists(snapshot):")
    accepts = {"rehearsal": "off", "witness_steps": 2, "accept": ["setup.code"]}
    report, history = resumed(source, then=guarded, continuity=accepts)
    assert (report.stop_reason, report.failure, report.to_step) == (StopReason.FINISHED, None, 40)
    assert history.attempts[1].verdict.rows_compared == 2
    assert [finding.component for finding in history.attempts[1].verdict.findings] == []


@pytest.mark.matrix
def test_a_program_that_only_reads_its_own_snapshot_goes_on(resumed):
    report, history = resumed(WITH_SNAPSHOT + EPOCHS.replace("LOOP", "8"))
    assert (report.stop_reason, report.failure, report.to_step) == (StopReason.FINISHED, None, 40)
    assert history.attempts[1].verdict.kind is VerdictKind.EXACT


PLAIN = "import segue, sys\nrun = segue.session()\nfor n in LOOP:\n    run.report(loss=n)\n"


@pytest.mark.parametrize(
    ("before", "now", "options", "to_step"),
    [
        ("run.steps(40)", "run.steps(20)", (), None),
        ("run.steps(40)", "run.steps(50)", (), 50),
        pytest.param("run.steps(40)", "run.steps(1, 41)", (), None, marks=pytest.mark.matrix),
        pytest.param("run.steps(40)", "run.steps()", (), 60, marks=pytest.mark.matrix),
        pytest.param("run.steps(len(sys.argv) * 10 + 20)", None, ("more",), 50, marks=pytest.mark.matrix),
        pytest.param("run.steps(60 - len(sys.argv) * 10)", None, ("fewer",), 30, marks=pytest.mark.matrix),
    ],
)
def test_another_end_has_to_be_meant(resumed, before, now, options, to_step):
    accepts = {"rehearsal": "off", "witness_steps": 2, "accept": ["setup.code"]}
    then = PLAIN.replace("LOOP", now) if now else None
    report, _ = resumed(PLAIN.replace("LOOP", before), then=then, options=options, steps=60, continuity=accepts)
    if to_step is None:
        assert report.stop_reason is StopReason.FAILED
        assert f"at the checkpoint it looped over {before}" in report.failure.message
        assert f"Fix: let it loop over {before}, which continues by itself after a resume" in report.failure.message
    else:
        assert (report.stop_reason, report.failure, report.to_step) == (StopReason.FINISHED, None, to_step)


@pytest.mark.matrix
@pytest.mark.parametrize("goal", [30, 50])
def test_an_end_that_the_config_gives_is_meant_where_the_config_has_changed(resumed, goal):
    source = PLAIN.replace("LOOP", 'run.steps(run.config.get("goal", 40))')
    report, _ = resumed(source, config={"goal": goal}, steps=60)
    assert (report.stop_reason, report.failure, report.to_step) == (StopReason.FINISHED, None, goal)


@pytest.mark.parametrize("loop", ["run.steps(0)", "run.steps(8, 8)", "run.epochs(8, 3)"])
def test_a_new_run_that_would_train_nothing_is_refused(fork_server, make_spec, open_log, tmp_path, loop):
    left = tmp_path / "left.txt"
    left.write_text("8")
    script = tmp_path / "train.py"
    script.write_text(f"open({str(left)!r}).read()\n" + PLAIN.replace("LOOP", loop))
    spec = make_spec(recipe=None, program={"command": ["python", str(script)]})
    report = fork_server.run_attempt(open_log(spec), spec)
    assert report.stop_reason is StopReason.FAILED
    assert f"the program loops over {loop}, which has no numbers; it has read {left}" in report.failure.message


def test_a_run_that_has_finished_is_extended_by_one_that_begins_with_its_checkpoint(
    fork_server, make_spec, open_log, tmp_path
):
    script = tmp_path / "train.py"
    script.write_text(PLAIN.replace("LOOP", "run.steps(int(sys.argv[1]))"))

    def spec_of(run_id, goal):
        command = ["python", str(script), str(goal)]
        return make_spec(recipe=None, run_id=run_id, steps=60, program={"command": command})

    first, longer = spec_of("first", 20), spec_of("longer", 30)
    assert fork_server.run_attempt(open_log(first), first).to_step == 20
    fork_run(longer, "first")
    report = fork_server.run_attempt(open_log(longer), longer)
    assert (report.stop_reason, report.failure, report.from_step, report.to_step) == (StopReason.FINISHED, None, 20, 30)


EIGHT = LoopRange("run.epochs()", 0, 8, "a")
LATER = LoopRange("run.epochs()", 0, 9, "a")
READS = OwnFiles(read=("snapshot.pt",))


def begun(now):
    record = RangeRecord(now, at=AT)
    record.restore(RangeRecord(EIGHT, at=AT - timedelta(hours=1)).capture())
    return record


def test_a_program_that_reads_its_own_snapshot_is_told(caplog):
    asked = []
    require_continued(begun(EIGHT), lambda since: asked.append(since) or READS, may_extend=True, compares_code=False)
    assert asked == [AT - timedelta(hours=1)], "the time at which the run's first attempt began to train"
    assert caplog.messages == [
        "the program has read snapshot.pt, written by this run; segue restores tracked state without it. "
        "Fix: let it read snapshot.pt only `if not run.is_active`"
    ]
    caplog.clear()
    require_continued(begun(EIGHT), lambda _: OwnFiles(written=("log.csv",)), may_extend=True, compares_code=True)
    assert caplog.messages == []


def test_a_later_end_that_follows_from_a_snapshot_is_not_meant():
    require_continued(begun(LATER), lambda _: OwnFiles(), may_extend=True, compares_code=False)
    with pytest.raises(SessionError, match=r"the program has read snapshot.pt"):
        require_continued(begun(LATER), lambda _: READS, may_extend=True, compares_code=False)
    with pytest.raises(SessionError, match=r"has written log.csv, .* read no file of its own if"):
        require_continued(begun(LATER), lambda _: OwnFiles(written=("log.csv",)), may_extend=False, compares_code=False)


def test_files_of_the_run_are_those_that_changed_while_it_trained(tmp_path, monkeypatch):
    began, again = AT, AT + timedelta(hours=1)
    changed = {"data.csv": -60, "snapshot.pt": 60, "out/best.pt": 120, "store/log": 60, ".hidden": 60, "now.log": 3700}
    for name, seconds in changed.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, times=(0, AT.timestamp() + seconds))
    monkeypatch.setattr(own_files_module, "opened_files", lambda: ())
    times = {"since": began, "until": again, "folder": tmp_path, "apart": [tmp_path / "store"]}
    assert own_files(**times) == OwnFiles(written=("out/best.pt", "snapshot.pt"))
    opened = tuple(str(tmp_path / name) for name in (*changed, "gone"))
    monkeypatch.setattr(own_files_module, "opened_files", lambda: opened[:2])
    assert own_files(**times) == OwnFiles(read=(opened[1],))


@pytest.mark.parametrize(
    ("now", "goes_on", "is_extended"),
    [
        (("run.epochs()", 0, 8, "a"), True, True),
        (("run.epochs()", 0, 9, "a"), False, True),
        (("run.epochs()", 0, 7, "a"), False, False),
        (("run.epochs()", 0, 7, "b"), True, True),
        (("run.epochs()", 0, None, "a"), False, True),
        (("run.epochs()", 1, 8, "b"), False, False),
        (("run.steps()", 0, 8, "b"), False, False),
    ],
)
def test_a_range_goes_on_in_one_with_the_same_begin(now, goes_on, is_extended):
    before, now = LoopRange("run.epochs()", 0, 8, "a"), LoopRange(*now)
    assert now.continues(before, may_extend=False) is goes_on
    assert now.continues(before, may_extend=True) is is_extended
