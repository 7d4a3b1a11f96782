"""Runs the driver process of one attempt on a Ray cluster: `python -m segue.launch.ray.driver FOLDER`.

The first line of standard input is the assignment. Each further line is an order to the ranks. The driver is a separate
process, because Ray ends its driver, without an exception, when the cluster's head restarts. The actors and the
placement group belong to the driver. A working cluster ends the actors together with the driver, and the ranks become
orphans. Orphans commit their last step and end.

Ray itself retries nothing, because segue decides about lost attempts.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from segue.clock import Clock, SystemClock
from segue.errors import RaySetupError
from segue.launch.assignment import Assignment, ExitCode
from segue.launch.output import survive_broken_output
from segue.launch.problem import Problem, as_pairs
from segue.launch.ray import cluster
from segue.launch.ray.bundle_actor import facts_here, shared_variables
from segue.launch.ray.driver_status import DriverStatus, StatusFolder
from segue.launch.ray.gang import ActorLostError, Gang
from segue.launch.ray.placement_group import avoidable, bundle_of, bundles_now, grow_seconds, in_words, is_to_ask
from segue.launch.ray.problems import node_problems
from segue.process import Parent

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.3
_DRAIN_SECONDS = 1.0
"""Seconds between two checks for draining nodes."""
_ROOM_SECONDS = 5.0
"""Seconds between two checks for free resources, and between two attempts to connect."""
_OTHERS_SECONDS = 60.0
"""Seconds for which ranks may continue after other ranks have ended, in addition to the grace period."""
_NOTICES = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Commands:
    """Reads the orders of the segment in a thread. A notice before the start of the ranks ends the driver
    immediately.
    """

    def __init__(self, folder: StatusFolder) -> None:
        self._folder, self._parent = folder, Parent()
        self._asked: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self._lock, self._is_held = threading.Lock(), False
        threading.Thread(target=self._read, name="segue-ray-commands", daemon=True).start()

    def hold(self) -> None:
        """Keep all later orders for `take`, because the ranks are about to start."""
        with self._lock:
            self._is_held = True

    def take(self) -> tuple[str, int] | None:
        """Return the next order. Return None if there is no order."""
        try:
            return self._asked.get_nowait()
        except queue.Empty:
            return None

    def put_notice(self, number: int) -> None:
        """Add a received signal as a notice. A signal handler may call this method."""
        self._asked.put(("give_notice", number))

    def _read(self) -> None:
        for line in iter(sys.stdin.buffer.readline, b""):
            what, _, number = line.decode().strip().partition(" ")
            self._hear(what, int(number or 0))
        # If standard input ends, the segment has ended. If a process that the segment forked holds the pipe open,
        # standard input does not end.
        self._hear("give_notice", int(signal.SIGTERM))

    def _hear(self, what: str, number: int) -> None:
        with self._lock:
            if not self._is_held and what in ("give_notice", "kill"):
                ended = "it was ended before the Ray cluster had room for it"
                try:
                    self._folder.write(DriverStatus(code=ExitCode.NOTICE, ended=ended))
                finally:
                    os._exit(ExitCode.NOTICE)  # The placement group ends too.
            self._asked.put((what, number))


class Driver:
    """The driver of one attempt, from the connection to the cluster until the end of the ranks."""

    def __init__(self, assignment: Assignment, folder: StatusFolder, commands: Commands, *, clock: Clock) -> None:
        self._assignment, self._spec, self._plan = assignment, assignment.spec, assignment.plan
        self._folder, self._commands, self._clock = folder, commands, clock
        self._parent = Parent()
        self._is_orphan = self._has_lost_actors = False
        self._here = str(Path.cwd())
        self._told_of: set[str] = set()
        self._drains: cluster.Drains | None = None

    def run(self) -> DriverStatus:
        """Train the attempt, and return the final status of the driver.

        Raises:
            RaySetupError: the cluster cannot run the attempt.
        """
        self._connect()
        self._refuse_problems()
        gang, has_started = self._placed(), False
        try:
            self._meet(gang)
            has_started = True
            self._start(gang)
            self._follow(gang)
        except ActorLostError as error:
            gang.tell("kill")  # Ranks of the other actors would wait for its ranks.
            gang.look(wait_seconds=_ROOM_SECONDS)
            ended = f"a Ray actor did not start ({error})"
            return DriverStatus(has_started=has_started, code=-signal.SIGKILL, ended=ended, was_refused=not has_started)
        code = gang.code if gang.code is not None else -signal.SIGKILL
        ended = gang.lost + " was lost" if gang.lost else _ended(code)
        return DriverStatus(has_started=True, code=code, ended=ended, was_out_of_memory=gang.was_out_of_memory)

    def _connect(self) -> None:
        assert self._spec.ray is not None
        address = self._spec.ray.address
        self._wait_for("its Ray driver is connecting")
        while not cluster.connect(address):
            # The head may be restarting. Requests that the cluster can never fulfil were refused before the first
            # segment.
            self._wait_for(f"the Ray cluster ({address}) does not answer")
            self._clock.sleep(_ROOM_SECONDS)
            self._end_as_orphan()
        for number in _NOTICES:  # Ray has set its own handlers.
            signal.signal(number, lambda signum, _: self._commands.put_notice(signum))

    def _refuse_problems(self) -> None:
        """Check the cluster in the first attempt. Later attempts make no check, because a missing resource may come
        back.

        The driver checks the nodes of the ranks later, because segue could not check all nodes at the start of the run.
        """
        if (self._plan.segment, self._plan.attempt) == (0, 1):
            _refuse([problem for problem in cluster.problems_of(self._spec) if problem.is_certain])

    def _placed(self) -> Gang:
        """Wait until the cluster has room for enough actors, and return the actors."""
        spec, capacity, avoided = self._spec, self._plan.capacity, self._plan.avoided_nodes
        bundle, group, asked, seen = bundle_of(spec, capacity), None, 0, 0
        grows_until = self._clock.monotonic() + (grow_seconds(self._plan) if cluster.has_autoscaler() else 0.0)
        while group is None or not group.wait(_ROOM_SECONDS):
            self._end_as_orphan()
            may_grow, nodes = self._clock.monotonic() < grows_until, cluster.nodes()
            avoided_before, avoided = avoided, avoidable(spec, capacity, nodes, self._plan.avoided_nodes)
            fit = [node for node in nodes if node.node_id not in avoided]
            seen_before, seen = seen, bundles_now(spec, capacity, fit, may_grow=may_grow)
            if is_to_ask(seen, seen_before=seen_before, asked=asked) or avoided != avoided_before:
                if group is not None:
                    cluster.give_back(group)
                group, asked = cluster.ask_for(seen, bundle, avoided=avoided), seen
                self._wait_for(f"the placement group ({in_words(seen, bundle)}) waits for room on the Ray cluster")
        log.info("the placement group is ready bundles=%d", asked)
        return Gang(group, bundle, asked)

    def _meet(self, gang: Gang) -> None:
        facts = gang.meet(self._here)
        _refuse(node_problems(facts_here(self._here), facts, folder=self._here))
        log.info("starting ranks on %s", ", ".join(dict.fromkeys(each.in_words for each in facts)))

    def _start(self, gang: Gang) -> None:
        assert self._spec.ray is not None
        ranks = gang.count * self._spec.ray.ranks_per_bundle
        log.info("starting %d ranks", ranks)
        spec = self._spec.model_copy(update={"ranks": ranks})
        made = self._assignment.model_copy(update={"spec": spec})
        self._commands.hold()
        self._folder.write(DriverStatus(has_started=True))
        gang.start(made, folder=self._here, variables=shared_variables(os.environ))

    def _follow(self, gang: Gang) -> None:
        """Pass orders to the ranks until all ranks have ended."""
        give_up_at: float | None = None
        self._drains = cluster.Drains(period_seconds=_DRAIN_SECONDS, clock=self._clock)
        while not gang.has_ended:
            for line in gang.look(wait_seconds=_LOOK_SECONDS):
                sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
            at = self._clock.monotonic()
            while (asked := self._commands.take()) is not None:
                gang.tell(*asked)
            self._look_for_losses(gang)
            self._look_for_drains(gang, self._drains.found)
            if gang.waits_for_the_lost:
                gang.tell("kill")
            if gang.is_ending and give_up_at is None:
                give_up_at = at + self._spec.grace_seconds + _OTHERS_SECONDS
            if give_up_at is not None and at > give_up_at:
                log.warning("killing the remaining ranks, because other ranks have ended")
                gang.tell("kill")
                give_up_at = at + _OTHERS_SECONDS
            self._clock.sleep(_LOOK_SECONDS)

    def _look_for_losses(self, gang: Gang) -> None:
        """Give all ranks a notice if an actor is lost or the segment has ended. The ranks of a lost actor get no
        notice.
        """
        is_segment_lost = not self._parent.is_alive()
        if (is_segment_lost and not self._is_orphan) or (gang.lost and not self._has_lost_actors):
            gang.tell("give_notice", signal.SIGTERM)
        self._is_orphan, self._has_lost_actors = is_segment_lost, bool(gang.lost)

    def _look_for_drains(self, gang: Gang, draining: Mapping[str, float | None]) -> None:
        """Give all ranks a notice one grace period before the deadline of a draining node, or at once without a
        deadline.
        """
        for node_id, deadline in draining.items():
            if node_id in self._told_of or not gang.is_on(node_id):
                continue
            left = 0.0 if deadline is None else deadline - self._clock.now().timestamp() - self._spec.grace_seconds
            if left <= 0:
                log.warning("a node is draining, sending a notice to all ranks node=%s", node_id[:8])
                self._told_of.add(node_id)
                gang.tell("give_notice", signal.SIGTERM)

    def _wait_for(self, why: str) -> None:
        self._folder.write(DriverStatus(why_waiting=why))

    def _end_as_orphan(self) -> None:
        if not self._parent.is_alive():
            os._exit(ExitCode.NOTICE)


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise RaySetupError(problems=as_pairs(problems))


def _ended(code: int) -> str:
    how = f"exited with code {code}" if code >= 0 else f"was killed by signal {-code}"
    return f"its trainer on the Ray cluster {how}"


def main() -> int:
    """Run the assignment from standard input. Return the exit code."""
    folder, clock = StatusFolder(Path(sys.argv[1])), SystemClock()
    assignment = Assignment.model_validate_json(sys.stdin.buffer.readline())
    name = f"{assignment.spec.run_id} seg{assignment.plan.segment} a{assignment.plan.attempt} driver"
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=f"%(levelname)s {name} | %(message)s")
    survive_broken_output()
    driver = Driver(assignment, folder, Commands(folder), clock=clock)
    try:
        status = driver.run()
    except RaySetupError as error:
        status = DriverStatus(code=ExitCode.USAGE, problems=error.problems)
    except Exception as error:
        # Catch any exception, because the normal end of Python would wait for the cluster, which may not answer.
        log.exception("the Ray driver failed")
        ended = f"its Ray driver failed ({type(error).__name__})"
        status = folder.read().model_copy(update={"code": -signal.SIGKILL, "ended": ended})
    folder.write(status)
    assert status.code is not None
    sys.stdout.flush()
    # Exit without Ray's clean-up, which would wait for the cluster, and the cluster may not answer. The cluster cleans
    # up by itself.
    os._exit(status.code if status.code >= 0 else 1)


if __name__ == "__main__":
    sys.exit(main())
