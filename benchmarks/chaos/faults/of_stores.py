"""Faults of stores: an unreachable, full, slow or refusing store."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.chaos.faults.kind import Kind, Undo
from benchmarks.chaos.gate import OPEN, Manner
from benchmarks.chaos.places import FolderPlace, Place, S3Place
from benchmarks.chaos.schedule import Fault
from benchmarks.chaos.world import World, picked

_AWAY = (3.0, 14.0)
_SLOW_SECONDS = 0.3


def take_away(world: World, fault: Fault) -> Undo:
    place = picked(world.places, fault.pick)
    return _while(world, place, place.take_away, place.bring_back)


def fill(world: World, fault: Fault) -> Undo:
    folders = [p for p in world.places if isinstance(p, FolderPlace) and p.can_be_filled]
    place = picked(folders, fault.pick)
    return _while(world, place, place.fill, place.empty)


def _behaves(manner: Manner) -> Callable[[World, Fault], Undo]:
    def apply(world: World, fault: Fault) -> Undo:
        place = picked([place for place in world.places if isinstance(place, S3Place)], fault.pick)
        return _while(world, place, lambda: place.behave(manner), lambda: place.behave(OPEN))

    return apply


def _while(world: World, place: Place, begin: Callable[[], None], end: Callable[[], None]) -> Undo:
    world.take(place.name)
    begin()

    def finish() -> None:
        end()
        world.release(place.name)

    return finish


KINDS = (
    Kind("store-away", "a folder is unmounted and mounted again; S3 does not listen", _AWAY, take_away),
    Kind("store-full", "the disk of a folder is full", _AWAY, fill),
    Kind(
        "store-slow", "S3 answers 0.3 s later, for each part of an answer", _AWAY, _behaves(Manner(delay_seconds=0.3))
    ),
    Kind("store-refuses", "S3 answers 503", _AWAY, _behaves(Manner(status=503))),
    Kind("store-hangs", "S3 takes requests and answers none", _AWAY, _behaves(Manner(holds=True))),
)
