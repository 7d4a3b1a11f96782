"""The context of one attempt: the values that do not change from the claim to the report of the attempt."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from segue.clock import Clock
from segue.launch.assignment import Assignment
from segue.launch.memory import RecentKills
from segue.notices.board import NoticeBoard
from segue.records import Environment, SegmentPlan
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.trainer.claim import Claim
from segue.trainer.health.activity import Activity
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.ranks.group import RankGroup, local_rank_count


@dataclass(frozen=True, kw_only=True)
class AttemptContext:
    """The constant values of one attempt in the process that trains."""

    assignment: Assignment
    runlog: RunLog
    claim: Claim
    device: torch.device
    environment: Environment
    group: RankGroup
    board: NoticeBoard
    clock: Clock
    activity: Activity
    kills: RecentKills
    """Number of processes that the kernel has killed for lack of memory, as of a few seconds ago."""
    memory_limit_bytes: int | None
    started_at: float
    """Start of the attempt in this process, in monotonic seconds."""

    @property
    def spec(self) -> RunSpec:
        return self.assignment.spec

    @property
    def plan(self) -> SegmentPlan:
        return self.assignment.plan

    @property
    def ranks(self) -> Ranks:
        return self.group.ranks

    @property
    def memory_share_bytes(self) -> int | None:
        """This rank's share of the machine's memory limit; None if there is no limit."""
        limit = self.memory_limit_bytes
        return None if limit is None else limit // (local_rank_count() if self.ranks.count > 1 else 1)

    @property
    def seconds(self) -> float:
        """Seconds since the attempt began."""
        return self.clock.monotonic() - self.started_at
