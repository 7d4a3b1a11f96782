"""What the demo does to a run: it takes spot machines away, and no others."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from segue.deployments.process.demo import Preemptions

from segue.records import Capacity, Heartbeat
from tests.support.histories import Logbook, make_spec


@pytest.fixture
def trainer():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("capacity", "step", "is_killed"),
    [(Capacity.SPOT, 27, False), (Capacity.SPOT, 29, True), (Capacity.ON_DEMAND, 99, False)],
)
def test_the_demo_kills_a_trainer_on_spot_once_it_has_come_far_enough(trainer, capacity, step, is_killed):
    book = Logbook(make_spec())
    name = book.claim(book.plan(capacity))
    facts = {"attempt_id": name, "counter": 1, "phase": "training", "beat_at": datetime.now(UTC)}
    told = Preemptions(steps=100)(book.history, Heartbeat(step=step, trainer_pid=trainer.pid, **facts))
    if is_killed:
        assert told == f"step {step}: SIGKILL to the trainer, without a word"
        assert trainer.wait(10) == -signal.SIGKILL
    else:
        assert told is None
        assert trainer.poll() is None
