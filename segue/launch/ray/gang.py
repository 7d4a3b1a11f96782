"""Starts and watches the actors of one attempt, and the state of their ranks. This module imports Ray."""

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
from segue.launch.problem import as_pairs
from segue.launch.ray.bundle_actor import RanksAnswer, remote_class
from segue.launch.ray.placement_group import Resources
from segue.launch.ray.problems import NodeFacts, is_of_import, not_importable
from segue.launch.rendezvous import Nodes

log = logging.getLogger(__name__)


class Orders:
    """Sends orders to an actor, which passes them to its ranks.

    Orders arrive in the order in which they were given. An order may arrive twice, without harm.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._left: deque[tuple[str, int]] = deque()
        self._asked: Any = None

    def give(self, what: str, number: int) -> None:
        """Send this order after all earlier orders have arrived. The call does not block."""
        if self._left and self._left[-1] == (what, number):
            return  # An order is on its way, or will be sent again.
        self._left.append((what, number))
        if self._asked is None:
            self._send()

    def look(self) -> None:
        """Repeat the last order if it did not arrive, or send the next order. The call does not block."""
        if self._asked is None or not ray.wait([self._asked], timeout=0)[0]:
            return
        try:
            ray.get(self._asked)
        except ray.exceptions.ActorUnavailableError:
            # The connection to the actor broke, so it is unknown whether the order has arrived.
            log.warning("repeating an order that a Ray actor may have missed order=%s", self._left[0][0])
            self._send()
            return
        except ray.exceptions.RayError as error:
            log.warning("a Ray actor missed an order what=%s reason=%s", self._left[0][0], type(error).__name__)
        self._left.popleft()
        self._asked = None
        if self._left:
            self._send()

    def _send(self) -> None:
        self._asked = self._actor.tell.remote(*self._left[0])


_BOOT_SECONDS = 300.0
"""Longest wait in seconds for the processes of all actors."""


class ActorLostError(Exception):
    """An actor was lost or did not start."""


@dataclass
class _Member:
    """One actor, and the state of this actor."""

    number: int
    actor: Any
    orders: Orders
    facts: NodeFacts | None = None
    asked: Any = None
    """The pending answer of the actor."""
    code: int | None = None
    lost: str | None = None
    """Reason for the loss of the actor. The value is None if the actor is not lost."""
    have_left: bool = False
    was_out_of_memory: bool = False

    @property
    def has_ended(self) -> bool:
        return self.code is not None or self.lost is not None


class Gang:
    """The actors of a placement group, one for each bundle. Actor 0 has rank 0."""

    def __init__(self, group: PlacementGroup, bundle: Resources, count: int) -> None:
        """Start the actors without waiting for them."""
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
        """Wait for all actors, and return the data of each actor's node.

        Raises:
            ActorLostError: an actor cannot answer, or does not answer within five minutes.
            RaySetupError: an actor's node cannot import segue.
        """
        for member, facts in zip(self._members, self._ask_all("facts", folder), strict=True):
            member.facts = facts
        return [member.facts for member in self._members if member.facts is not None]

    def start(self, assignment: Assignment, *, folder: str, variables: dict[str, str]) -> None:
        """Start the ranks of all actors.

        Raises:
            ActorLostError: an actor did not start its ranks.
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
        """Ask all actors for the state of their ranks, for at most `wait_seconds`. Return the new lines of output."""
        for member in self._members:
            member.orders.look()
            if not member.has_ended and member.asked is None:
                member.asked = member.actor.look.remote()
        owed = {member.asked: member for member in self._members if member.asked is not None}
        done = ray.wait(list(owed), num_returns=len(owed), timeout=wait_seconds)[0] if owed else []
        return [line for ref in done for line in self._take(owed[ref])]

    def tell(self, what: str, number: int = 0) -> None:
        """Send an order to every running actor. `look` repeats an order that does not arrive."""
        for member in self._members:
            if not member.has_ended:
                member.orders.give(what, number)

    def is_on(self, node_id: str) -> bool:
        """Whether this node has ranks that still train."""
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
        """Whether an actor is lost, or the ranks of an actor have ended. The other ranks will then soon end."""
        return any(member.has_ended for member in self._members)

    @property
    def waits_for_the_lost(self) -> bool:
        """Whether all other ranks have ended while torchrun waits some minutes for the ranks of a lost actor."""
        left = [member for member in self._members if not member.has_ended]
        return self.lost is not None and bool(left) and all(member.have_left for member in left)

    @property
    def lost(self) -> str | None:
        """Description of the lost actors. The value is None if no actor is lost."""
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
        """Exit code of the trainer, which is the exit code of rank 0. The value is None if the actor of rank 0 is
        lost.
        """
        codes = [member.code for member in self._members]
        return ExitCode.USAGE if ExitCode.USAGE in codes else codes[0]

    def _take(self, member: _Member) -> tuple[str, ...]:
        asked, member.asked = member.asked, None
        try:
            answer: RanksAnswer = ray.get(asked)
        except ray.exceptions.ActorUnavailableError:
            return ()  # The connection broke; the actor may still run.
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
    """Return the line of Ray's error message that has the cause, without the lines that identify the actor."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [
        line
        for line in lines
        if not line.startswith(("class_name:", "actor_id:", "pid:", "name:", "namespace:", "ip:"))
    ]
    return (told[-1] if told else type(error).__name__).rstrip(".")
