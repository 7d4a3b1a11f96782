"""`python -m benchmarks.continuity.blind [AXIS ...]`: resumes of training scripts as people write them, by axis.

Prints one JSON object: for each axis how many were found, named, advised, and called broken though sound, and the names
of those that were not as they should be. `python -m benchmarks continuity` has the same among all of its figures.
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
