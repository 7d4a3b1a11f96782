"""What came of a quarter. A test that failed counts only if it also fails alone; one that was skipped did not run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from tests.support.soak.quarters import NUMBER


@dataclass(frozen=True)
class Summary:
    """The tests of a quarter by how they ended."""

    passed: tuple[str, ...]
    passed_alone: tuple[str, ...]
    failed: tuple[str, ...]
    not_run: Mapping[str, tuple[str, ...]]
    """Reason -> tests."""

    @classmethod
    def of(cls, outcomes: Mapping[str, str], *, passes_alone: Callable[[str], bool]) -> Self:
        """`outcomes`: test -> passed, failed, or why it was not run. `passes_alone` runs a test once more."""
        not_run = defaultdict(list)
        for test, outcome in outcomes.items():
            if outcome not in ("passed", "failed"):
                not_run[outcome].append(test)
        failed = [test for test, outcome in outcomes.items() if outcome == "failed"]
        again = {test: passes_alone(test) for test in failed}
        return cls(
            passed=tuple(test for test, outcome in outcomes.items() if outcome == "passed"),
            passed_alone=tuple(test for test in failed if again[test]),
            failed=tuple(test for test in failed if not again[test]),
            not_run={why: tuple(tests) for why, tests in not_run.items()},
        )

    @property
    def exit_code(self) -> int:
        return 1 if self.failed else 0

    def lines(self, quarter: int) -> list[str]:
        skipped = sum(map(len, self.not_run.values()))
        counts = f"{len(self.passed)} passed, {len(self.passed_alone)} passed only alone, {len(self.failed)} failed"
        found = [f"soak tests, quarter {quarter + 1} of {NUMBER}: {counts}, {skipped} not run"]
        found += [f"  passed only alone: {test}" for test in self.passed_alone]
        found += [f"  failed twice: {test}" for test in self.failed]
        for why, tests in self.not_run.items():
            found += [f"  not run ({why}): {test}" for test in tests]
        return found
