"""Describes why a run's trainers could not run on a cluster. The checks are made before the run starts."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

log = logging.getLogger(__name__)

Pairs = tuple[tuple[str, str], ...]
"""Pairs of a problem and the fix of this problem."""


class Problem(BaseModel):
    """A reason why trainers cannot run, or a part of the cluster that could not be checked."""

    model_config = ConfigDict(frozen=True)

    what: str
    fix: str
    is_certain: bool = True
    """Whether the problem is certain. A problem that is not certain is no reason to refuse a run."""


def as_pairs(problems: Iterable[Problem]) -> Pairs:
    return tuple((problem.what, problem.fix) for problem in problems)


def refusals(problems: Iterable[Problem]) -> Pairs:
    """Return the certain problems. A run with a certain problem is refused. Log all other problems."""
    found = []
    for problem in dict.fromkeys(problems):
        if problem.is_certain:
            found.append(problem)
        else:
            log.warning("%s. Fix: %s", problem.what, problem.fix)
    return as_pairs(found)
