"""Defines the status and the command of a standby: two small objects in the store.

The standby overwrites the status, and the parent overwrites the command. Decisions that must not be made twice are in
the run's log. The loss of a status or command can therefore cost a standby, but never the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from pydantic import AwareDatetime, Field

from segue.errors import MissingObjectError
from segue.records import Record
from segue.runlog import keys
from segue.stores.base import Store

_NEWEST = 12
"""Number of newest standbys among which a parent searches for leftover standbys of an earlier parent."""

Phase = Literal["here", "booting", "ready", "gone"]
Action = Literal["wait", "boot", "leave"]


class StandbyStatus(Record):
    """A standby's heartbeat. If the counter changes, the standby is alive."""

    standby: str = Field(alias="spare")
    counter: int = Field(ge=0)
    phase: Phase = Field(description="`here`: has a machine; `booting`; `ready`: has booted; `gone`: has left.")
    note: str | None = Field(None, description="Reason for leaving.")
    flow_run_id: str | None = None
    held_seconds: float = Field(0.0, ge=0, description="Paid seconds since the standby got its machine.")
    beat_at: AwareDatetime


class StandbyCommand(Record):
    """The parent's command to a standby. A living parent repeats the command."""

    standby: str = Field(alias="spare")
    counter: int = Field(ge=0)
    action: Action = Field(alias="order")
    why: str
    deployment: str = Field(description="Deployment of the spot pool to which the standby was submitted.")
    segment: int = Field(ge=0, description="Segment on on-demand during which the standby was submitted.")
    attempt: int = Field(ge=1)


def put_status(store: Store, run_id: str, status: StandbyStatus) -> None:
    """Overwrite a standby's status.

    Raises:
        StoreWriteError: the status was not stored.
    """
    key = keys.standby_status_key(run_id, status.standby)
    store.put(key, status.model_dump_json().encode(), durable=False)


def status_of(store: Store, run_id: str, standby: str) -> StandbyStatus | None:
    """Return a standby's newest status, or None if the store has no readable status.

    Raises:
        StoreReadError: the store could not be read.
    """
    try:
        return StandbyStatus.model_validate_json(store.get(keys.standby_status_key(run_id, standby)))
    except (MissingObjectError, ValueError):
        return None


def put_command(store: Store, run_id: str, command: StandbyCommand) -> None:
    """Overwrite the command of a standby.

    Raises:
        StoreWriteError: the command was not stored.
    """
    store.put(keys.standby_command_key(run_id, command.standby), command.model_dump_json().encode())


def command_of(store: Store, run_id: str, standby: str) -> StandbyCommand | None:
    """Return a standby's command, or None if the store has no readable command.

    Raises:
        StoreReadError: the store could not be read.
    """
    try:
        return StandbyCommand.model_validate_json(store.get(keys.standby_command_key(run_id, standby)))
    except (MissingObjectError, ValueError):
        return None


def newest_standby(store: Store, run_id: str) -> int | None:
    """Return the number of a run's last standby that has a command, or None if no standby has a command.

    Raises:
        StoreReadError: the store could not be read.
    """
    listed = (keys.commanded_standby(item.key) for item in store.list_objects(keys.standbys_prefix(run_id)))
    return max((number for number in listed if number is not None), default=None)


def newest_commands(store: Store, run_id: str) -> Iterator[StandbyCommand]:
    """Yield the readable commands of the newest standbys of a run, newest first.

    Raises:
        StoreReadError: the store could not be read.
    """
    newest = newest_standby(store, run_id)
    for number in range(-1 if newest is None else newest, -1, -1)[:_NEWEST]:
        command = command_of(store, run_id, keys.standby_id(number))
        if command is not None:
            yield command


class HeldStandby(NamedTuple):
    """A standby that holds a machine, or that held a machine until it left or took over the run."""

    deployment: str
    began_at: datetime
    seconds: float


def held_standbys(store: Store, run_id: str) -> list[HeldStandby]:
    """Return the standbys of a run that have had a machine, in the order of their numbers.

    Raises:
        StoreReadError: the store could not be read.
    """
    newest, held = newest_standby(store, run_id), []
    for number in range(0 if newest is None else newest + 1):
        standby = keys.standby_id(number)
        command, status = command_of(store, run_id, standby), status_of(store, run_id, standby)
        if command is not None and status is not None:
            began_at = status.beat_at - timedelta(seconds=status.held_seconds)
            held.append(HeldStandby(command.deployment, began_at, status.held_seconds))
    return held


def held_by_standbys(store: Store, run_id: str) -> dict[str, float]:
    """Return the seconds for which the standbys of a run held machines, by pool.

    The time of a standby ends when its process exits, or when it takes over the run.

    Raises:
        StoreReadError: the store could not be read.
    """
    held = dict[str, float]()
    for standby in held_standbys(store, run_id):
        held[standby.deployment] = held.get(standby.deployment, 0.0) + standby.seconds
    return held
