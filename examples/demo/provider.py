"""The stack of the demo, and its provider of spot: one machine fails, the next is taken back, then there is no spot."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from segue.deployments.local_stack.stack import LocalStack
from segue.records import Capacity, Heartbeat, SegmentPlan
from segue.reports.console import errors
from segue.runlog.history import Attempt, History
from segue.testing.metadata import FAKES, FakeMetadataService

_KILL_AT = 0.35
"""Share of the steps at which the first spot machine fails."""
_NOTICE_AFTER = 0.1
"""Share of the steps that the second machine trains before it is taken back: early, while the slack is large."""


def can_be_verified(history: History) -> bool:
    """Whether a resume from the newest checkpoint can replay steps of the run, so that its verdict is not
    `unverified`."""
    return history.newest is not None and bool(history.newest.rows)


@contextmanager
def begun_stack(
    folder: Path, *, home: Path, cloud: str | None
) -> Iterator[tuple[LocalStack, FakeMetadataService | None]]:
    """A local Prefect that begins to start, and ends with the block, and the metadata service of the cloud, if any.

    Does not import Prefect, so that the server starts before Prefect is imported.
    """
    with ExitStack() as ending:
        service = ending.enter_context(FAKES[cloud]()) if cloud is not None else None
        variables = service.environment if service is not None else {}
        stack = LocalStack(folder, home=home, say=lambda text: errors.print(f"[dim]{text}[/]"), variables=variables)
        ending.callback(stack.stop)
        stack.begin()
        yield stack, service


@dataclass
class Provider:
    """The provider of spot in the demo: one machine fails, the next is taken back, then there is none for a while.

    Without spot the slack runs out on any machine, so the run moves to on-demand. Spot is there again once on-demand
    trains; whether the run then goes back depends on the slack that is left.
    """

    steps: int
    set_spot: Callable[[bool], None]
    """Called with True if the spot pool is to start machines, and with False if not."""
    service: FakeMetadataService | None = None
    """The metadata service of the spot machines; without one, SIGTERM is their notice."""
    done: list[str] = field(default_factory=list)
    struck: SegmentPlan | None = None
    """The attempt that lost its machine, or is losing it, until it has a report; nothing more is done to it."""

    def __call__(self, history: History, beat: Heartbeat | None) -> str | None:
        """Do what is due; returns what was done."""
        self._replace_machine(history)
        plan = history.open_plan
        attempt = history.attempt_of(plan.segment, plan.attempt) if plan else None
        if plan is None or attempt is None or beat is None or beat.phase != "training":
            return None
        if plan.capacity is Capacity.ON_DEMAND:
            return self._give_back(beat)
        if plan == self.struck:
            return None
        if not self.done and beat.step >= _KILL_AT * self.steps and can_be_verified(history):
            os.kill(beat.trainer_pid, signal.SIGKILL)
            self.struck = plan
            self.done.append("kill")
            return f"step {beat.step}: the spot machine fails (SIGKILL to the trainer)"
        resumed_at = plan.parent.step if plan.parent else 0
        if self.done == ["kill"] and beat.step >= resumed_at + _NOTICE_AFTER * self.steps:
            self.set_spot(False)
            self._give_notice(attempt)
            self.struck = plan
            self.done.append("notice")
            through = f" ({self.service.platform})" if self.service else ""
            return f"step {beat.step}: termination notice from the provider{through}, who has no other spot machine"
        return None

    def _give_notice(self, attempt: Attempt) -> None:
        if self.service is not None:
            self.service.preempt()
        else:
            os.kill(attempt.claim.segment_pid, signal.SIGTERM)

    def _replace_machine(self, history: History) -> None:
        """Once the machine is gone, withdraw the notice: the next attempt is on another machine, which has none."""
        plan = self.struck
        if plan is None or history.report_of(plan.segment, plan.attempt) is None:
            return
        self.struck = None
        if self.service is not None:
            self.service.reset()

    def _give_back(self, beat: Heartbeat) -> str | None:
        if "escalation" in self.done:
            return None
        self.set_spot(True)
        self.done.append("escalation")
        return f"step {beat.step}: on-demand trains; the provider has spot machines again"
