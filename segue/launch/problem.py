"""Problems that would prevent a run's trainers from running on a cluster. They are found before the start of the
run."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

log = logging.getLogger(__name__)

Pairs = tuple[tuple[str, str], ...]
"""Pairs of a problem and its fix."""


class Problem(BaseModel):
    """A reason why trainers cannot run, or a part of the cluster that could not be checked."""

    model_config = ConfigDict(frozen=True)

    what: str
    fix: str
    is_certain: bool = True
    """Whether the problem is certain. If the problem is not certain, trainers may still run, and no run is refused
    because of it."""


def as_pairs(problems: Iterable[Problem]) -> Pairs:
    return tuple((problem.what, problem.fix) for problem in problems)


def refusals(problems: Iterable[Problem]) -> Pairs:
    """Return the certain problems, because of which a run is refused. Log all other problems."""
    found = []
    for problem in dict.fromkeys(problems):
        if problem.is_certain:
            found.append(problem)
        else:
            log.warning("%s. Fix: %s", problem.what, problem.fix)
    return as_pairs(found)
