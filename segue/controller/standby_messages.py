"""What a spare and the run's parent tell each other: two small objects in the store, each overwritten by one side.

None of it decides anything that must not be decided twice: that is in the run's log. A word or an order that is lost
costs a spare, never the run.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from segue.errors import MissingObjectError
from segue.records import Record
from segue.runlog import keys
from segue.stores.base import Store

Phase = Literal["here", "booting", "ready", "gone"]


class SpareWord(Record):
    """A spare's sign of life. Liveness is the counter moving, not a timestamp."""

    spare: str
    counter: int = Field(ge=0)
    phase: Phase = Field(description="here: it got a machine; ready: it could train at once; gone: it has left.")
    note: str | None = Field(None, description="Why it left.")
    flow_run_id: str | None = None
    held_seconds: float = Field(0.0, ge=0, description="Since it got a machine, which is paid.")
    beat_at: AwareDatetime


class SpareOrder(Record):
    """What the parent wants of a spare, said again and again while the parent lives."""

    spare: str
    counter: int = Field(ge=0)
    order: Literal["wait", "boot", "leave"]
    why: str
    deployment: str = Field(description="The spot pool that it was sent to.")
    segment: int = Field(ge=0, description="The segment on on-demand that it was sent beside.")
    attempt: int = Field(ge=1)


def put_word(store: Store, run_id: str, word: SpareWord) -> None:
    """Overwrite a spare's sign of life.

    Raises:
        StoreWriteError: it did not reach the store.
    """
    key = keys.spare_word_key(run_id, word.spare)
    store.put(key, word.model_dump_json().encode(), durable=False)


def word_of(store: Store, run_id: str, spare: str) -> SpareWord | None:
    """A spare's newest sign of life; None when there is none that can be read.

    Raises:
        StoreReadError: the store did not say.
    """
    try:
        return SpareWord.model_validate_json(store.get(keys.spare_word_key(run_id, spare)))
    except (MissingObjectError, ValueError):
        return None


def put_order(store: Store, run_id: str, order: SpareOrder) -> None:
    """Overwrite the order of a spare.

    Raises:
        StoreWriteError: it did not reach the store.
    """
    store.put(keys.spare_order_key(run_id, order.spare), order.model_dump_json().encode())


def order_of(store: Store, run_id: str, spare: str) -> SpareOrder | None:
    """What a spare is to do; None when there is no order that can be read.

    Raises:
        StoreReadError: the store did not say.
    """
    try:
        return SpareOrder.model_validate_json(store.get(keys.spare_order_key(run_id, spare)))
    except (MissingObjectError, ValueError):
        return None


def newest_spare(store: Store, run_id: str) -> int | None:
    """The number of the last spare that ever was to be sent for a run.

    Raises:
        StoreReadError: the store did not say.
    """
    listed = (keys.ordered_spare(item.key) for item in store.list_objects(keys.spares_prefix(run_id)))
    return max((number for number in listed if number is not None), default=None)


def held_by_spares(store: Store, run_id: str) -> dict[str, float]:
    """Seconds for which the spares of a run have held a machine, by pool, until they left or the run was theirs.

    Raises:
        StoreReadError: the store did not say.
    """
    newest, held = newest_spare(store, run_id), dict[str, float]()
    for number in range(0 if newest is None else newest + 1):
        spare = keys.spare_id(number)
        order, word = order_of(store, run_id, spare), word_of(store, run_id, spare)
        if order is not None and word is not None:
            held[order.deployment] = held.get(order.deployment, 0.0) + word.held_seconds
    return held
