"""The loaders that a program hands to `run.batches`, each with the component that holds its position."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from segue.errors import SessionError
from segue.trainer.programs.batches import BatchesComponent


class _Slot(NamedTuple):
    loader: Any
    """Kept: another loader could get its id."""
    batches: BatchesComponent


class Loaders:
    """Loaders by the names of their components, in the order in which the program first used them."""

    def __init__(self, *, seed: int) -> None:
        self._seed = seed
        self._slots: dict[str, _Slot] = {}
        self._used: set[str] = set()
        """Names of the loaders that were used in this epoch."""
        self._replaced: list[weakref.ref[Any]] = []
        self.by_name: dict[str, Any] = {}
        """The loaders as of now, in one dict throughout."""

    def __iter__(self) -> Iterator[BatchesComponent]:
        return (slot.batches for slot in self._slots.values())

    def batches_left(self, *, epochs: int) -> float:
        """Batches until that many epochs have ended; infinite if that is not known, as with several loaders."""
        if len(self._slots) != 1:
            return math.inf
        [batches] = self
        left, length = batches.left, batches.length
        return math.inf if left is None or length is None else left + (epochs - 1) * length

    def begin_epoch(self) -> None:
        """A program that makes loaders in each epoch uses them in the same order again."""
        self._used.clear()

    def known(self, loader: Any) -> BatchesComponent | None:
        """The position in a loader that was used before; equal ranges count as one loader.

        Raises:
            SessionError: another loader has taken its place since, so its generators and counters were not committed.
        """
        if any(each() is loader for each in self._replaced):
            what = "run.batches(loader) got a loader again that another one had replaced in an epoch between."
            raise SessionError(what=what, fix=_BEFORE_THE_LOOP)
        for name, slot in self._slots.items():
            if slot.loader is loader or (isinstance(loader, range) and slot.loader == loader):
                self._used.add(name)
                return slot.batches
        return None

    def new(self, loader: Any) -> tuple[str, BatchesComponent]:
        """A name and a component for a loader that was not used before; `put` makes it known.

        Raises:
            SessionError: the loader cannot be resumed; names what would make it resumable.
        """
        count = len(self._slots)
        return f"batches_{count + 1}" if count else "batches", BatchesComponent(loader, seed=self._seed)

    def put(self, name: str, loader: Any, batches: BatchesComponent) -> None:
        """Know the loader by this name from now on, and forget another loader that had the name."""
        self._slots[name] = _Slot(loader, batches)
        self.by_name[name] = loader
        self._used.add(name)

    def take_over(self, loader: Any) -> BatchesComponent:
        """The position in a loader that was made in this epoch: it takes the place of a loader from an earlier epoch.

        Raises:
            SessionError: there is no earlier loader whose place it could take; or the loader cannot be resumed.
        """
        name = next((name for name in self._slots if name not in self._used), None)
        if name is None:
            what = "run.batches(loader) got one more loader than in the epoch in which training began."
            raise SessionError(what=what, fix=_BEFORE_THE_LOOP)
        before, batches = self._slots[name]
        batches.go_on_with(loader, seed=self._seed)
        self.put(name, loader, batches)
        self._replaced = [each for each in self._replaced if each() is not None]
        if type(before).__weakrefoffset__:  # Not a range, for example, which has no state of its own.
            self._replaced.append(weakref.ref(before))
        return batches


_BEFORE_THE_LOOP = (
    "make all loaders before the loop, and call run.batches(loader) for each of them there; one that is made in each "
    "epoch may only take the place of the one before it."
)
