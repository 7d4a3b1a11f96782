"""Problems that would keep a run's trainers from running on a cluster, found before anything is started."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

log = logging.getLogger(__name__)

Pairs = tuple[tuple[str, str], ...]
"""Each pair is what is wrong, and its fix."""


class Problem(BaseModel):
    """One reason why trainers cannot run, or one part that could not be looked at."""

    model_config = ConfigDict(frozen=True)

    what: str
    fix: str
    is_certain: bool = True
    """False: trainers may run nevertheless, so no run is refused for it."""


def as_pairs(problems: Iterable[Problem]) -> Pairs:
    return tuple((problem.what, problem.fix) for problem in problems)


def refusals(problems: Iterable[Problem]) -> Pairs:
    """The problems for which a run is refused; the others are logged."""
    found = []
    for problem in dict.fromkeys(problems):
        if problem.is_certain:
            found.append(problem)
        else:
            log.warning("%s. Fix: %s", problem.what, problem.fix)
    return as_pairs(found)
