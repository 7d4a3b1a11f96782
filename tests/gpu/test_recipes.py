"""Recipes on a device: killed, resumed, and the same as undisturbed, or equivalent where kernels do not repeat."""

from __future__ import annotations

import signal

import pytest
import torch

from segue.records import StopReason, VerdictKind
from segue.resume_drill import drill_spec
from segue.runlog.history import read_history
from tests.support.observers import stop_when_proven

RECIPE = "tests.gpu.recipes:build"
JUDGED = {"rehearsal": "stop"}
"""Fresh processes give a second opinion about a replay that differs."""
SOUND = (VerdictKind.EXACT, VerdictKind.EQUIVALENT)


@pytest.fixture
def on_device(make_spec):
    def make(kind, *, steps=100, config=None, **fields):
        common = {"checkpoints": {"every_steps": 30}, "continuity": {"rehearsal": "off"}, "threads": None}
        return make_spec(recipe=RECIPE, steps=steps, config={"kind": kind, **(config or {})}, **common | fields)

    return make


@pytest.fixture
def resumed(fork_server, open_log):
    """Kills the run when its checkpoint can be verified, resumes it, and returns its history and its verdict."""

    def run(spec, *, environment=None):
        runlog = open_log(spec)
        lost = fork_server.run_attempt(runlog, spec, observer=stop_when_proven(signal.SIGKILL))
        assert lost.stop_reason is StopReason.LOST, lost.failure
        report = fork_server.run_attempt(runlog, spec, environment=environment)
        history = read_history(runlog.reload())
        return history, history.attempts[1].verdict, report

    return run


@pytest.mark.parametrize("kind", ["averaged", "scaled", "bf16"])
def test_a_resume_on_the_device_is_exact(resumed, on_device, kind):
    history, verdict, report = resumed(on_device(kind))
    assert report.stop_reason is StopReason.FINISHED, report.failure and report.failure.message
    assert verdict.kind is VerdictKind.EXACT, verdict.sentence
    environment = history.newest.manifest.environment
    assert environment.device == (torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("config", [{"reshard": True}, {"reshard": False}, {"offload": True}], ids=str)
def test_a_sharded_model_of_one_rank_resumes_exactly(resumed, on_device, config):
    if "offload" in config and not torch.cuda.is_available():
        pytest.skip("parameters that are offloaded need a device")
    _, verdict, report = resumed(on_device("sharded", config=config))
    assert report.stop_reason is StopReason.FINISHED, report.failure and report.failure.message
    assert verdict.kind is VerdictKind.EXACT, verdict.sentence


@pytest.mark.parametrize(
    # cuDNN chooses a kernel for a convolution by the memory that is free, which other tests would change.
    "kind",
    ["mlp", pytest.param("cnn", marks=pytest.mark.alone), "attention"],
)
def test_with_deterministic_kernels_a_drill_ends_as_undisturbed(make_spec, kind):
    report = drill_spec(make_spec(recipe=RECIPE, config={"kind": kind}, steps=40, threads=None), kills=1)
    assert report.passed, report


@pytest.mark.parametrize("kind", ["flash", "scatter"])
def test_kernels_that_do_not_repeat_their_bits_break_no_resume(fork_server, on_device, open_log, kind):
    spec = on_device(kind, steps=10_000, policy={"max_lost_in_place": 100}, continuity=JUDGED)
    runlog = open_log(spec)
    for _ in range(5):
        fork_server.run_attempt(runlog, spec, observer=stop_when_newly_proven())
    verdicts = [attempt.verdict for attempt in read_history(runlog.reload()).attempts if attempt.verdict is not None]
    assert len(verdicts) >= 3
    assert {verdict.kind for verdict in verdicts} <= set(SOUND), [verdict.sentence for verdict in verdicts]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("kind", ["flash", "scatter"])
def test_lost_optimizer_state_is_named_under_that_noise(resumed, on_device, tmp_path, kind, number):
    lost = {"lost": True, "marker": str(tmp_path / "built")}
    _, verdict, report = resumed(on_device(kind, config=lost, seed=number))
    assert report.failure.type == "BrokenResumeError"
    assert (verdict.kind, verdict.findings[0].component) == (VerdictKind.BROKEN, "optimizer")


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_a_compiled_model_is_never_broken_from_a_cold_cache(resumed, on_device, tmp_path, mode):
    spec = on_device("compiled", config={"mode": mode}, continuity=JUDGED)
    _, verdict, report = resumed(spec, environment={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cold")})
    assert report.stop_reason is StopReason.FINISHED, report.failure and report.failure.message
    assert verdict.kind is not VerdictKind.BROKEN, verdict.sentence


@pytest.mark.only_cuda
def test_another_precision_of_products_is_another_environment(resumed, on_device):
    _, verdict, report = resumed(on_device("precise"), environment={"TEST_MATMUL": "high"})
    assert report.stop_reason is StopReason.FINISHED, report.failure and report.failure.message
    assert "reduced_precision" in verdict.environment_changes
    assert verdict.kind in (VerdictKind.EQUIVALENT, VerdictKind.UNVERIFIED)


@pytest.mark.only_cuda
def test_a_checkpoint_of_the_device_goes_on_on_the_processor_and_back(fork_server, on_device, open_log):
    spec = on_device("mlp")
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec, observer=stop_when_proven(signal.SIGKILL))
    there = spec.model_copy(update={"device": "cpu"})
    fork_server.run_attempt(runlog, there, observer=stop_when_newly_proven())
    fork_server.run_attempt(runlog, spec)
    verdicts = [attempt.verdict for attempt in read_history(runlog.reload()).attempts[1:]]
    assert [verdict.kind for verdict in verdicts] == [VerdictKind.UNVERIFIED] * 2 or verdicts[1].kind in SOUND
    assert all("device" in verdict.environment_changes for verdict in verdicts)


def stop_when_newly_proven():
    """As `stop_when_proven`, once this attempt has a checkpoint of its own, or its verdict is broken."""

    def observer(pid, runlog, plan):
        history = read_history(runlog)
        attempt = history.attempt_of(plan.segment, plan.attempt)
        own = [
            each for each in history.usable if attempt is not None and each.ref.attempt_id == attempt.claim.attempt_id
        ]
        if not own or not own[-1].rows:
            return False
        return stop_when_proven(signal.SIGKILL)(pid, runlog, plan)

    return observer
