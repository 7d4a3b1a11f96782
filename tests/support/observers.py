"""What a test does to a trainer while it watches its log."""

from __future__ import annotations

import os
from collections.abc import Callable

from segue.records import SegmentPlan
from segue.runlog.history import read_history
from segue.runlog.log import RunLog


def stop_when_proven(number: int) -> Callable[[int, RunLog, SegmentPlan], bool]:
    """Send this signal to the trainer once its newest checkpoint can be verified."""

    def observer(pid: int, runlog: RunLog, plan: SegmentPlan) -> bool:
        newest = read_history(runlog).newest
        if newest is None or not newest.rows:
            return False
        os.kill(pid, number)
        return True

    return observer
