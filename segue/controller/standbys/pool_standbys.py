"""Manages the standbys of a training attempt on all spot pools to which the run may move.

segue submits a standby to each pool that is worth a move. As soon as one standby has a machine, segue withdraws the
other standbys.
"""

from __future__ import annotations

from collections.abc import Collection

from segue.clock import Clock
from segue.controller.orchestrator import Orchestrator
from segue.controller.standbys.manager import Pauses, Place, StandbyManager, has_been_used
from segue.controller.standbys.messages import newest_commands, put_command
from segue.policy.estimates import Situation
from segue.policy.handover import standby_pools
from segue.records import SegmentPlan
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec

_UNWANTED = "a standby on this pool is no longer wanted"
_ASK_SECONDS = 30.0
"""Seconds between two choices of pools while no standby is submitted."""


class PoolStandbys:
    """The standbys of one attempt."""

    def __init__(
        self, runlog: RunLog, spec: RunSpec, plan: SegmentPlan, *, orchestrator: Orchestrator, clock: Clock
    ) -> None:
        self._runlog, self._spec, self._plan, self._clock = runlog, spec, plan, clock
        self._orchestrator = orchestrator
        self._pauses = Pauses(begun_at=clock.monotonic())
        self._managers: dict[str, StandbyManager] = {}
        self._worth: list[StandbyManager] = []
        self._ask_at = clock.monotonic()
        self._has_released = False

    def look(self, history: History, here: Situation) -> bool:
        """Submit the standbys of a training attempt, or send them commands, if this is due.

        Return whether to recall the attempt.

        Raises:
            StoreReadError, StoreWriteError: the store could not be used. It is safe to call the method again.
        """
        named = history.handover_of(self._plan.segment, self._plan.attempt)
        if named is not None:
            return self._only(self._manager_of(named.deployment)).look(history, here)
        holder = next((each for each in self._managers.values() if each.has_machine), None)
        for manager in [holder] if holder is not None else self._worth_asking(history, here):
            was_sent = manager.is_sent
            if manager.look(history, here):
                return True
            if manager.has_machine:
                self._only(manager)
                break
            if was_sent and not manager.is_sent:
                # The parent rejected the standby, or its machine is gone. The waiting standbys of the other pools are
                # then also not needed.
                self._only(manager, why="a standby on another pool was not used")
                break
        return False

    def close(self) -> None:
        """Release all standbys except a standby to which the run was handed over.

        The method does not wait for an unreachable store.
        """
        for manager in self._managers.values():
            manager.close()

    def _worth_asking(self, history: History, here: Situation) -> list[StandbyManager]:
        """Return the managers of the pools on which a standby waits or should wait."""
        at = self._clock.monotonic()
        if at >= self._ask_at and not any(each.is_sent for each in self._managers.values()):
            self._ask_at = at + _ASK_SECONDS
            pools = standby_pools(self._spec, history, here, self._plan, now=self._clock.now())
            if not self._has_released:
                release_leftover(self._runlog, self._spec, orchestrator=self._orchestrator, why=_UNWANTED, kept=pools)
                self._has_released = True
            self._worth = [self._manager_of(deployment) for deployment in pools]
        return self._worth

    def _manager_of(self, deployment: str) -> StandbyManager:
        if deployment not in self._managers:
            self._managers[deployment] = StandbyManager(
                self._runlog,
                self._spec,
                Place(self._plan, deployment),
                orchestrator=self._orchestrator,
                clock=self._clock,
                pauses=self._pauses,
            )
        return self._managers[deployment]

    def _only(self, kept: StandbyManager, *, why: str = "another standby has a machine") -> StandbyManager:
        """Withdraw all standbys except the standby of `kept`."""
        for manager in self._managers.values():
            if manager is not kept:
                manager.withdraw(why)
        return kept


def release_leftover(
    runlog: RunLog,
    spec: RunSpec,
    *,
    orchestrator: Orchestrator,
    why: str = "the run is over",
    kept: Collection[str] = (),
) -> None:
    """Cancel the standbys that a killed parent left on the pools, except on the pools in `kept`.

    Raises:
        StoreReadError, StoreWriteError: the store could not be used. It is safe to call the function again. Without the
        call, a standby leaves by itself after its start.
    """
    history = read_history(runlog)
    for command in newest_commands(runlog.store, runlog.run_id):
        is_used = command.action == "leave" or has_been_used(history, command.standby)
        if is_used or command.deployment in kept:
            continue
        made = command.model_copy(update={"action": "leave", "why": why, "counter": command.counter + 1})
        put_command(runlog.store, runlog.run_id, made)
        handle = orchestrator.submit_standby(spec, command.standby, deployment=command.deployment)
        if handle is not None:
            orchestrator.cancel_standby(handle, why)
