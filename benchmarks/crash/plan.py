"""The kills of a crash benchmark, and the runs in which they are made. The kills depend only on a seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.crash.killing_store import KillPoint, Moment, Operation

_MOST_FLIGHT_SECONDS = 0.004
_MOST_WAIT_SECONDS = 0.8
_MOST_OF_ONE = 3
_ONCE = frozenset({Operation.CLAIM_APPEND, Operation.QUARANTINE_APPEND, Operation.VERDICT_APPEND})
_ONCE |= {Operation.REPORT_APPEND, Operation.SWEEP_DROP, Operation.SWEEP_DELETE}
_MOST_OF = dict.fromkeys(_ONCE, 1) | {Operation.RESTORE_READ: 2}
"""Largest number of an operation in one attempt, for operations that an attempt does not repeat often."""


class Victim(StrEnum):
    """The target of a kill from outside, in an attempt with a writer process."""

    TRAINER = "trainer"
    WRITER = "writer"
    BOTH = "trainer and writer"
    TRAINER_DURING_PUT = "trainer during a put"
    WRITER_DURING_PUT = "writer during a put"

    @property
    def is_during_put(self) -> bool:
        """Whether the kill comes while the writer is in the middle of a shard, and not at a random moment."""
        return self in (Victim.TRAINER_DURING_PUT, Victim.WRITER_DURING_PUT)

    @property
    def is_writer_alone(self) -> bool:
        """Whether the trainer must continue after the kill."""
        return self in (Victim.WRITER, Victim.WRITER_DURING_PUT)


@dataclass(frozen=True)
class InsideKill:
    """The trainer kills itself at a named operation."""

    place: str
    point: KillPoint

    @property
    def name(self) -> str:
        return self.point.operation.value

    @property
    def moment(self) -> str:
        return self.point.moment.value


@dataclass(frozen=True)
class OutsideKill:
    """A kill of a process from outside, a number of seconds after the start of the process, or after the attempt
    trains."""

    place: str
    victim: Victim
    after_seconds: float
    at_work: bool
    """Whether the seconds count from the verdict, or from the first commit of an attempt that has no parent."""
    is_late: bool
    """Whether the bytes that the writer was sending still arrive after its end."""

    @property
    def name(self) -> str:
        return self.victim.value

    @property
    def moment(self) -> str:
        return "any"


Kill = InsideKill | OutsideKill

NAMES: tuple[str, ...] = (*(operation.value for operation in Operation), *(victim.value for victim in Victim))
"""Names of all operations and victims. A schedule with as many kills as names has each name once."""


def schedule(*, kills: int, places: Sequence[str], seed: int) -> tuple[Kill, ...]:
    """This number of kills in random order, with each name and each place equally often."""
    chance = random.Random(seed)
    made: Counter[str] = Counter()
    first: dict[str, int] = {}
    plan: list[Kill] = []
    while len(plan) < kills:
        for name in chance.sample(NAMES, min(len(NAMES), kills - len(plan))):
            place = places[(first.setdefault(name, len(plan)) + made[name]) % len(places)]
            # Each place goes through all moments of an operation in turn.
            plan.append(_kill(name, place, turn=made[name] // len(places), chance=chance))
            made[name] += 1
    return tuple(plan)


def lanes(plan: Iterable[Kill]) -> dict[tuple[str, bool], list[Kill]]:
    """The kills that can share a run, grouped by place and by whether they come from outside."""
    found: dict[tuple[str, bool], list[Kill]] = {}
    for kill in plan:
        found.setdefault((kill.place, isinstance(kill, OutsideKill)), []).append(kill)
    return dict(sorted(found.items()))


def _kill(name: str, place: str, *, turn: int, chance: random.Random) -> Kill:
    if name not in set(Operation):
        victim = Victim(name)
        # Half of them die while the attempt starts: where there is no work to lose yet, a start can go wrong.
        at_work = victim.is_during_put or chance.random() < 0.5
        return OutsideKill(
            place=place,
            victim=victim,
            after_seconds=chance.uniform(0.0, _MOST_WAIT_SECONDS),
            at_work=at_work,
            is_late=chance.random() < 0.5,
        )
    operation, moments = Operation(name), list(Moment)
    return InsideKill(
        place=place,
        point=KillPoint(
            operation=operation,
            moment=moments[(turn + list(Operation).index(operation)) % len(moments)],
            number=chance.randint(1, _MOST_OF.get(operation, _MOST_OF_ONE)),
            flight_seconds=chance.uniform(0.0, _MOST_FLIGHT_SECONDS),
        ),
    )
