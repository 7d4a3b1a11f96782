"""Run mutants: `python -m tests.support.mutants [WORD]`; with a word only those with it in room, file or text.

Exit code 0: each was noticed by its nearest tests.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.support.mutants.catalog import chosen
from tests.support.mutants.runner import ROOT, Outcome, run_all

AT_ONCE = 1


def main() -> int:
    mutants = chosen(sys.argv[1] if len(sys.argv) > 1 else "")
    problems = [problem for mutant in mutants if (problem := mutant.problem(ROOT))]
    for problem in problems:
        say(problem)
    if problems or not mutants:
        say(f"{len(mutants)} mutants, {len(problems)} of them are none")
        return 2
    began, left = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="segue-mutants-") as folder:
        for mutant, outcome, output in run_all(mutants, Path(folder), at_once=AT_ONCE):
            say(f"{outcome:8} {mutant.name}")
            if outcome is not Outcome.KILLED:
                left.append(f"{outcome}: {mutant.name}\n{output}")
    for text in left:
        say(text)
    say(f"{len(mutants)} mutants, {len(left)} not noticed, {time.monotonic() - began:.0f} s")
    return 1 if left else 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
