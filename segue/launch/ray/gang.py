"""The actors of one attempt, and the state of their ranks. Imports Ray."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from segue.errors import RaySetupError
from segue.launch.assignment import Assignment, ExitCode
from segue.launch.meeting import Nodes
from segue.launch.problem import as_pairs
from segue.launch.ray.bundle_actor import RanksAnswer, remote_class
from segue.launch.ray.placement_group import Resources
from segue.launch.ray.problems import NodeFacts, is_of_import, not_importable

log = logging.getLogger(__name__)


class Orders:
    """Orders that an actor passes on to its ranks. An order may be heard twice, but never before an earlier one.

    Every order may come twice without harm, as notices do.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._left: deque[tuple[str, int]] = deque()
        self._asked: Any = None

    def give(self, what: str, number: int) -> None:
        """Send this order, at once unless an earlier one is on its way. Does not block."""
        if self._left and self._left[-1] == (what, number):
            return  # An order is on its way, or will be sent again.
        self._left.append((what, number))
        if self._asked is None:
            self._send()

    def look(self) -> None:
        """Repeat an order that was not heard, or send the next one. Does not block."""
        if self._asked is None or not ray.wait([self._asked], timeout=0)[0]:
            return
        try:
            ray.get(self._asked)
        except ray.exceptions.ActorUnavailableError:
            # The connection to it broke; whether it has heard is not known.
            log.warning("repeating an order that a Ray actor may have missed order=%s", self._left[0][0])
            self._send()
            return
        except ray.exceptions.RayError as error:
            log.warning("a Ray actor was not told what=%s reason=%s", self._left[0][0], type(error).__name__)
        self._left.popleft()
        self._asked = None
        if self._left:
            self._send()

    def _send(self) -> None:
        self._asked = self._actor.tell.remote(*self._left[0])


_BOOT_SECONDS = 300.0
"""Longest time in which the processes of all actors must be there."""


class ActorLostError(Exception):
    """An actor is gone, or did not come."""


@dataclass
class _Member:
    """One actor."""

    number: int
    actor: Any
    orders: Orders
    facts: NodeFacts | None = None
    asked: Any = None
    """The answer that the actor still has to give."""
    code: int | None = None
    lost: str | None = None
    """Why the actor is gone."""
    have_left: bool = False
    was_out_of_memory: bool = False

    @property
    def has_ended(self) -> bool:
        return self.code is not None or self.lost is not None


class Gang:
    """One actor on each bundle of a placement group; the actor of rank 0 has number 0."""

    def __init__(self, group: PlacementGroup, bundle: Resources, count: int) -> None:
        """Begin to start the actors."""
        cls, rest = remote_class(ray), {name: value for name, value in bundle.items() if name not in ("CPU", "GPU")}
        self._members = []
        for number in range(count):
            actor = cls.options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                resources=rest,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
            ).remote()
            self._members.append(_Member(number, actor, Orders(actor)))

    def meet(self, folder: str) -> list[NodeFacts]:
        """The facts of each of their nodes. Blocks until all have answered.

        Raises:
            ActorLostError: one of them cannot answer, or not within five minutes.
            RaySetupError: segue cannot be imported on one of them.
        """
        for member, facts in zip(self._members, self._ask_all("facts", folder), strict=True):
            member.facts = facts
        return [member.facts for member in self._members if member.facts is not None]

    def start(self, assignment: Assignment, *, folder: str, variables: dict[str, str]) -> None:
        """Start their ranks.

        Raises:
            ActorLostError: an actor did not start them.
        """
        (port,) = self._of([self._members[0].actor.free_port.remote()])
        first = self._members[0].facts
        assert first is not None
        count, text = len(self._members), assignment.model_dump_json()
        places = [Nodes(count, number, first.address, port) for number in range(count)]
        self._of(
            [
                member.actor.start.remote(text, place, folder=folder, variables=variables)
                for member, place in zip(self._members, places, strict=True)
            ]
        )

    def look(self, *, wait_seconds: float) -> list[str]:
        """Ask for the state of the ranks, and wait this long for answers; returns the lines that they have written."""
        for member in self._members:
            member.orders.look()
            if not member.has_ended and member.asked is None:
                member.asked = member.actor.look.remote()
        owed = {member.asked: member for member in self._members if member.asked is not None}
        done = ray.wait(list(owed), num_returns=len(owed), timeout=wait_seconds)[0] if owed else []
        return [line for ref in done for line in self._take(owed[ref])]

    def tell(self, what: str, number: int = 0) -> None:
        """Ask each actor that is not gone to pass this on; `look` repeats an order that was not heard."""
        for member in self._members:
            if not member.has_ended:
                member.orders.give(what, number)

    def is_on(self, node_id: str) -> bool:
        """Whether ranks that still train are on this node."""
        return any(
            member.facts is not None and member.facts.node_id == node_id and not member.has_ended
            for member in self._members
        )

    @property
    def count(self) -> int:
        return len(self._members)

    @property
    def has_ended(self) -> bool:
        return all(member.has_ended for member in self._members)

    @property
    def is_ending(self) -> bool:
        """Whether the ranks of one actor have ended, or the actor is lost: the others soon end by themselves."""
        return any(member.has_ended for member in self._members)

    @property
    def waits_for_the_lost(self) -> bool:
        """Whether all ranks that are left have ended, and torchrun waits, for minutes, for those of a lost actor."""
        left = [member for member in self._members if not member.has_ended]
        return self.lost is not None and bool(left) and all(member.have_left for member in left)

    @property
    def lost(self) -> str | None:
        """Which actors are gone, in words."""
        gone = [member for member in self._members if member.lost is not None]
        if not gone:
            return None
        each = (f"{_where(member)} ({member.lost})" for member in gone)
        return f"its Ray actor{'s' if len(gone) > 1 else ''} on {', '.join(each)}"

    @property
    def was_out_of_memory(self) -> bool:
        return any(member.was_out_of_memory for member in self._members)

    @property
    def code(self) -> int | None:
        """The trainer's exit code, which is that of rank 0; None if its actor is gone."""
        codes = [member.code for member in self._members]
        return ExitCode.USAGE if ExitCode.USAGE in codes else codes[0]

    def _take(self, member: _Member) -> tuple[str, ...]:
        asked, member.asked = member.asked, None
        try:
            answer: RanksAnswer = ray.get(asked)
        except ray.exceptions.ActorUnavailableError:
            return ()  # The connection to it broke; whether it is gone is not known yet.
        except ray.exceptions.RayError as error:
            member.lost = _cause(error)
            member.was_out_of_memory = isinstance(error, ray.exceptions.OutOfMemoryError) or "low on memory" in str(
                error
            )
            log.warning("a Ray actor is lost node=%s reason=%s", _where(member), member.lost)
            return ()
        member.code, member.have_left, member.was_out_of_memory = (
            answer.code,
            answer.have_left,
            answer.was_out_of_memory,
        )
        return answer.lines

    def _ask_all(self, method: str, *arguments: object) -> list[Any]:
        return self._of([getattr(member.actor, method).remote(*arguments) for member in self._members])

    def _of(self, refs: list[Any]) -> list[Any]:
        try:
            return list(ray.get(refs, timeout=_BOOT_SECONDS))
        except ray.exceptions.RayError as error:
            if is_of_import(error):
                raise RaySetupError(
                    problems=as_pairs([not_importable("a node of the Ray cluster", _cause(error))])
                ) from None
            raise ActorLostError(_cause(error)) from None


def _where(member: _Member) -> str:
    return member.facts.in_words if member.facts is not None else f"bundle {member.number}"


def _cause(error: Exception) -> str:
    """The line of Ray's error that says why, and not which actor with its many numbers."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [
        line
        for line in lines
        if not line.startswith(("class_name:", "actor_id:", "pid:", "name:", "namespace:", "ip:"))
    ]
    return (told[-1] if told else type(error).__name__).rstrip(".")
