"""`python -m benchmarks.continuity.blind [AXIS ...]`: resumes of training scripts as people write them, by axis.

Prints one JSON object. For each axis, it has the numbers of detected, named and advised scripts and of false alarms,
and the names of wrong cases. The figures of `python -m benchmarks continuity` include these numbers.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from benchmarks.continuity.axes import figures
from benchmarks.continuity.blind.cases import Axis
from benchmarks.continuity.blind.measure import Rounds, resumes
from benchmarks.continuity.report import trials_of

if __name__ == "__main__":
    asked = [Axis(word) for word in sys.argv[1:]] or list(Axis)
    made = resumes(asked, rounds=Rounds(alone_every=1), jobs=len(os.sched_getaffinity(0)))
    doubtful = [asdict(each) for each in made if each.is_alarm or each.problem or not (each.is_sound or each.is_named)]
    sys.stdout.write(json.dumps({**figures(trials_of(made)), "doubtful": doubtful}, indent=1) + "\n")
