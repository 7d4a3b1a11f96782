"""Run the tests nearest to what changed: `python -m tests.near [COMMIT]`; default: since the branch left main.

No test begins after 12 s, and those that need a Prefect server are left out; `make test` runs all.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.near.selection import Imports, nearest

ROOT = Path(__file__).parents[2]
MOST_FILES = 16
"""To collect more takes longer than to run them."""
MOST_SECONDS = 12.0
_SERVERS = "tests.flows."
_NOTHING_RAN = 5


class TimeLimit:
    """A plugin of pytest: no test begins after the limit."""

    def __init__(self, ends_at: float) -> None:
        self._ends_at = ends_at
        self._begun = self.left = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Leave a test out that would begin too late; True: nobody else runs it."""
        if self._begun and time.monotonic() > self._ends_at:
            self.left += 1
            return True
        self._begun += 1
        return None


def main() -> int:
    started_at = time.monotonic()
    since = sys.argv[1] if len(sys.argv) > 1 else branch_point()
    if not git("rev-parse", "--verify", "--quiet", f"{since}^{{commit}}", check=False):
        say(f"this clone has no commit {since!r}. Fix: give SINCE one that `git log` shows.")
        return 2
    changed = changed_files(since)
    tests = [name for name in nearest(changed, Imports.under(ROOT)) if not name.startswith(_SERVERS)]
    if not tests:
        say(f"{len(changed)} files changed since {since[:12]}, and no test imports one of them")
        return 0
    files = [f"{name.replace('.', '/')}.py" for name in tests[:MOST_FILES]]
    say(f"{len(changed)} files changed since {since[:12]}: the nearest {len(files)} of {len(tests)} test files")
    limit = TimeLimit(started_at + MOST_SECONDS)
    code = int(pytest.main(["-q", "-r", "f", "-p", "no:cacheprovider", *files], plugins=[limit]))
    if limit.left:
        say(f"after {MOST_SECONDS:.0f} s {limit.left} tests of these files were not begun; `make test` runs all tests")
    return 0 if code == _NOTHING_RAN else code


def branch_point() -> str:
    """The commit at which this branch left main; on main itself the last one, or the one before if nothing differs."""
    for main_branch in ("origin/main", "main"):
        known = git("rev-parse", "--verify", "--quiet", main_branch, check=False)
        if known:
            point = git("merge-base", "HEAD", main_branch)
            return point if point != git("rev-parse", "HEAD") or changed_files("HEAD") else "HEAD~1"
    return "HEAD"


def changed_files(since: str) -> list[str]:
    """The files that differ from a commit, also those that no commit has yet."""
    differ = git("diff", "--name-only", since, "--").splitlines()
    return sorted({*differ, *git("ls-files", "--others", "--exclude-standard").splitlines()})


def git(*words: str, check: bool = True) -> str:
    """What git prints."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=check).stdout.strip()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
