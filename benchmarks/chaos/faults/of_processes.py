"""Faults of processes: killed, suspended, terminated."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

from benchmarks.chaos import processes
from benchmarks.chaos.faults.kind import MOMENT, Kind, Undo, nothing
from benchmarks.chaos.runs import HEARTBEAT_TIMEOUT_SECONDS
from benchmarks.chaos.schedule import Fault
from benchmarks.chaos.stack import SERVER, WORKERS, is_alive, tree
from benchmarks.chaos.world import NotNowError, World, kill, picked
from segue.process import ProcessRef
from segue.runlog.entries import ClaimEntry

_WRITER = "segue.checkpoints.saving.writer_process"
_ZOMBIE = (HEARTBEAT_TIMEOUT_SECONDS + 2, HEARTBEAT_TIMEOUT_SECONDS + 9)
_DOWN = (2.0, 12.0)

Find = Callable[[ClaimEntry], Sequence[psutil.Process]]


def _trainer(claim: ClaimEntry) -> Sequence[psutil.Process]:
    return _alive([claim.trainer_pid])


def _engine(claim: ClaimEntry) -> Sequence[psutil.Process]:
    return _alive([claim.segment_pid])


def _writer(claim: ClaimEntry) -> Sequence[psutil.Process]:
    found = [process for trainer in _trainer(claim) for process in tree(trainer)[1:]]
    return [process for process in found if _WRITER in _command(process)]


def _machine(claim: ClaimEntry) -> Sequence[psutil.Process]:
    return processes.of_flow_run(claim.flow_run_id) if claim.flow_run_id else ()


def _kills(find: Find) -> Callable[[World, Fault], Undo]:
    def apply(world: World, fault: Fault) -> Undo:
        kill(_victims(world, fault, find))
        return nothing

    return apply


def _suspends(find: Find) -> Callable[[World, Fault], Undo]:
    def apply(world: World, fault: Fault) -> Undo:
        return world.suspend(_victims(world, fault, find))

    return apply


def _victims(world: World, fault: Fault, find: Find) -> Sequence[psutil.Process]:
    """The processes of one attempt that is alive."""
    claims = [claim for run in world.live if (claim := run.claim()) is not None]
    return picked([found for claim in claims if (found := find(claim))], fault.pick)


def _parent(world: World, fault: Fault) -> psutil.Process:
    records = [record for run in world.live if (record := run.parent()) is not None and record.process]
    found = [int(r.process.split()[0]) for r in records if ProcessRef.parse(r.process).is_alive()]
    return picked(_alive(found), fault.pick)


def kill_parent(world: World, fault: Fault) -> Undo:
    kill([_parent(world, fault)])
    return nothing


def suspend_parent(world: World, fault: Fault) -> Undo:
    return world.suspend([_parent(world, fault)])


def kill_worker(world: World, fault: Fault) -> Undo:
    """Kill only the worker. The processes that it started continue."""
    name = WORKERS[fault.pick % len(WORKERS)]
    return _kept_down(world, name, lambda: kill([world.stack.services[name]]))


def terminate_worker(world: World, fault: Fault) -> Undo:
    """Stop the service as a service manager does: SIGTERM, and then SIGKILL if the process has not ended."""
    name = WORKERS[fault.pick % len(WORKERS)]
    worker = world.stack.services[name]

    def terminate() -> None:
        if not is_alive(worker):
            raise NotNowError
        worker.send_signal(signal.SIGTERM)

    release = _kept_down(world, name, terminate)

    def finish() -> None:
        with suppress(psutil.Error):
            worker.kill()
        release()

    return finish


def kill_parents_machine(world: World, fault: Fault) -> Undo:
    """Kill the machine of all parents: their worker, and every parent."""
    name = "worker-parents"

    def strike() -> None:
        found = tree(world.stack.services[name])
        parents = [record.flow_run_id for run in world.live if (record := run.parent()) is not None]
        found += [process for each in parents if each for process in processes.of_flow_run(each)]
        kill(found)

    return _kept_down(world, name, strike)


def kill_server(world: World, fault: Fault) -> Undo:
    return _kept_down(world, SERVER, lambda: kill(tree(world.stack.services[SERVER])))


def suspend_server(world: World, fault: Fault) -> Undo:
    server = world.stack.services[SERVER]
    if not is_alive(server):
        raise NotNowError
    world.take(SERVER)
    resume = world.suspend(tree(server))

    def finish() -> None:
        resume()
        world.release(SERVER)

    return finish


def kill_recover(world: World, fault: Fault) -> Undo:
    """Hit the process at an age that the schedule selects: while it starts, sends requests, or writes."""
    age = world.recovery.seconds_running
    if age is None or age < (fault.pick % 30) / 10:
        raise NotNowError
    world.recovery.kill()
    return nothing


def _kept_down(world: World, name: str, strike: Callable[[], None]) -> Undo:
    world.take(name)
    try:
        strike()
    except BaseException:
        world.release(name)
        raise
    return lambda: world.release(name)


def _alive(pids: Sequence[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return [process for process in found if is_alive(process)]


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return list(process.cmdline())
    return []


KINDS = (
    Kind("trainer-kill", "SIGKILL to a trainer", MOMENT, _kills(_trainer)),
    Kind("engine-kill", "SIGKILL to the process of a segment's flow run", MOMENT, _kills(_engine)),
    Kind("writer-kill", "SIGKILL to the process that writes checkpoints", MOMENT, _kills(_writer)),
    Kind("machine-kill", "SIGKILL to all of a segment: its flow run, trainer, writer", MOMENT, _kills(_machine)),
    Kind("parent-kill", "SIGKILL to the parent of a run", MOMENT, kill_parent),
    Kind("parents-machine-kill", "SIGKILL to the parents' worker and every parent", _DOWN, kill_parents_machine),
    Kind("worker-kill", "SIGKILL to a worker, which comes back", _DOWN, kill_worker),
    Kind("worker-stop", "SIGTERM to a worker, SIGKILL at the end, then it comes back", _DOWN, terminate_worker),
    Kind("server-kill", "SIGKILL to the Prefect server, which comes back", _DOWN, kill_server),
    Kind("server-suspend", "SIGSTOP, later SIGCONT, to the Prefect server", _DOWN, suspend_server),
    Kind("recover-kill", "SIGKILL to `segue recover` at work", MOMENT, kill_recover),
    Kind("trainer-suspend", "SIGSTOP, later SIGCONT, to a trainer: a zombie", _ZOMBIE, _suspends(_trainer)),
    Kind("machine-suspend", "the same to all of a segment: a zombie machine", _ZOMBIE, _suspends(_machine)),
    Kind("parent-suspend", "the same to the parent of a run: a zombie parent", _ZOMBIE, suspend_parent),
)
