"""The loaders that a program passes to `run.batches`, and the component with the position in each loader."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from segue.errors import SessionError
from segue.trainer.programs.batches import BatchesComponent


class _Slot(NamedTuple):
    loader: Any
    """The loader. This reference keeps the loader alive, so that no new loader can get the same id."""
    batches: BatchesComponent


class Loaders:
    """The program's loaders, by component name, in the order of their first use."""

    def __init__(self, *, seed: int) -> None:
        self._seed = seed
        self._slots: dict[str, _Slot] = {}
        self._used: set[str] = set()
        """Names of the loaders that the program has used in this epoch."""
        self._replaced: list[weakref.ref[Any]] = []
        self.by_name: dict[str, Any] = {}
        """The current loaders, by name. The attribute always refers to the same dict."""

    def __iter__(self) -> Iterator[BatchesComponent]:
        return (slot.batches for slot in self._slots.values())

    def batches_left(self, *, epochs: int) -> float:
        """Number of batches in the next `epochs` epochs; infinite if unknown, for example with several loaders."""
        if len(self._slots) != 1:
            return math.inf
        [batches] = self
        left, length = batches.left, batches.length
        return math.inf if left is None or length is None else left + (epochs - 1) * length

    def begin_epoch(self) -> None:
        """Begin an epoch. If a program makes new loaders in each epoch, it must use them in the same order each
        time."""
        self._used.clear()

    def known(self, loader: Any) -> BatchesComponent | None:
        """Return the component of a known loader; None if the loader is not known. Equal ranges count as one loader.

        Raises:
            SessionError: another loader has replaced this loader, so that the generators and counters of this loader
                were not committed.
        """
        if any(each() is loader for each in self._replaced):
            what = "run.batches(loader) got a loader that another loader had replaced in an earlier epoch."
            raise SessionError(what=what, fix=_BEFORE_THE_LOOP)
        for name, slot in self._slots.items():
            if slot.loader is loader or (isinstance(loader, range) and slot.loader == loader):
                self._used.add(name)
                return slot.batches
        return None

    def new(self, loader: Any) -> tuple[str, BatchesComponent]:
        """Return a name and a component for a new loader. The method `put` then stores both.

        Raises:
            SessionError: the loader cannot be resumed; the message says how to make it resumable.
        """
        count = len(self._slots)
        return f"batches_{count + 1}" if count else "batches", BatchesComponent(loader, seed=self._seed)

    def put(self, name: str, loader: Any, batches: BatchesComponent) -> None:
        """Store the loader under this name, in place of any earlier loader with the name."""
        self._slots[name] = _Slot(loader, batches)
        self.by_name[name] = loader
        self._used.add(name)

    def take_over(self, loader: Any) -> BatchesComponent:
        """Return the component for a loader that replaces a loader from an earlier epoch.

        Raises:
            SessionError: there is no earlier loader that the loader can replace, or the loader cannot be resumed.
        """
        name = next((name for name in self._slots if name not in self._used), None)
        if name is None:
            what = "run.batches(loader) got more loaders than in the epoch in which training began."
            raise SessionError(what=what, fix=_BEFORE_THE_LOOP)
        before, batches = self._slots[name]
        batches.go_on_with(loader, seed=self._seed)
        self.put(name, loader, batches)
        self._replaced = [each for each in self._replaced if each() is not None]
        if type(before).__weakrefoffset__:  # Not for a range, which has no state.
            self._replaced.append(weakref.ref(before))
        return batches


_BEFORE_THE_LOOP = (
    "make all loaders before the loop, and call run.batches(loader) for each of them there; a loader that is made "
    "in each epoch may only replace the loader of the epoch before."
)
