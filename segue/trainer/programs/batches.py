"""The batches of a program's loader. The state has the position in the batches, so each batch is used exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from segue.data.order import Ids
from segue.data.passes import Drawn, LoaderPasses, Passes, RepeatedPasses
from segue.data.streams import streams_kept
from segue.errors import SessionError
from segue.recipe import Stateful
from segue.trainer.programs.sampler_state import streams_and_counters
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.workloads.state import RNG_PREFIX, rng_components
from segue.user_objects import attribute, has, in_words

_NONE = np.zeros(0, np.uint64)

_WAYS_OUT = (
    "set num_workers=0 and add state_dict and load_state_dict to the data set, or use torchdata's "
    "StatefulDataLoader, or make the data set map-style"
)


class SessionBatch(NamedTuple):
    """One batch of a program's loader."""

    content: Any
    ids: Ids
    """Ids of the samples in the batch; empty if unknown."""


class BatchSource(Protocol):
    """A source of batches."""

    def first(self, number: int) -> Iterator[SessionBatch]:
        """Return the batches of pass `number`, from the first batch of the pass."""
        ...

    def rest(self, number: int) -> Iterator[SessionBatch]:
        """Return the remaining batches of the restored pass. The call may change the random streams."""
        ...

    def capture(self) -> Any: ...

    def restore(self, tree: Any) -> None: ...


class BatchesComponent:
    """A component for one loader, which returns the batches of one pass after another. An interrupted pass continues
    from the position at the last safe point."""

    def __init__(self, loader: Any, *, seed: int) -> None:
        """
        Raises:
            SessionError: the loader cannot be resumed; the message says how to make it resumable.
        """
        self._source = _source_of(loader, seed=seed)
        self.length = _length_of(loader)
        """Number of batches in a pass; None if the loader does not know this number."""
        self._is_within = self._is_restored = False
        self.passes = 0
        """Number of completed passes."""
        self.batches = 0
        """Number of batches used in the current pass."""

    def capture(self) -> Any:
        position = {"passes": self.passes, "batches": self.batches, "is_within": self._is_within}
        return position | {"source": self._source.capture()}

    def restore(self, tree: Any) -> None:
        self.passes, self.batches = int(tree["passes"]), int(tree["batches"])
        self._is_within = self._is_restored = bool(tree["is_within"])
        self._source.restore(tree["source"])

    def go_on_with(self, loader: Any, *, seed: int) -> None:
        """Use this loader for the next pass.

        Raises:
            SessionError: the loader cannot be resumed; the message says how to make it resumable.
        """
        self._is_restored = False
        self.leave()
        self._source, self.length = _source_of(loader, seed=seed), _length_of(loader)

    @property
    def left(self) -> int | None:
        """Number of batches left in the current or next pass; None if the loader does not know its length."""
        return None if self.length is None else self.length - self.batches

    def leave(self) -> None:
        """End the pass if the program left it early. A restored pass stays open, because the program still has to
        continue this pass."""
        if self._is_within and not self._is_restored:
            self.passes, self.batches, self._is_within = self.passes + 1, 0, False

    def end_whole(self) -> None:
        """End the pass if it has no batch left, even if the pass was restored."""
        if self.left == 0:
            self._is_restored = False
        self.leave()

    def end(self, batches: Iterator[SessionBatch]) -> None:
        """End a pass that has no batch left.

        Raises:
            SessionError: the pass has a batch left.
        """
        if next(batches, None) is not None:
            what = f"the loader has a length of {self.length} batches, but gives more."
            raise SessionError(what=what, fix="correct __len__ of its sampler, because safe points rely on it.")

    def one_pass(self, *, fetch_with: Mapping[str, Any] = MappingProxyType({})) -> Iterator[SessionBatch]:
        """Return the remaining batches of the current pass, or all batches of the next pass.

        If `fetch_with` has states of global random streams, the loader uses these states while it fetches the batches.
        """
        if self._is_restored:
            with streams_kept():
                batches = self._source.rest(self.passes)
            _restore_streams(fetch_with)
        else:
            self.leave()
            _restore_streams(fetch_with)
            batches = self._source.first(self.passes)
        self._is_restored, self._is_within = False, True
        for batch in batches:
            self.batches += 1
            yield batch
        self.passes, self.batches, self._is_within = self.passes + 1, 0, False


def _restore_streams(states: Mapping[str, Any]) -> None:
    streams = rng_components(Ranks(), nn.Module())
    for name, state in states.items():
        streams[name].restore(state)


class _OfSampler:
    """A plain DataLoader with a map-style data set. The loader's sampler can repeat its indices."""

    def __init__(self, loader: DataLoader[Any], *, seed: int) -> None:
        self._passes = _passes_of(loader, seed=seed)
        self._streams = streams_and_counters(loader)
        self._is_drawn_on_demand = isinstance(self._passes, LoaderPasses) and not loader.num_workers
        self._begun: dict[str, Any] = {}
        self._used, self._order = 0, ""

    def first(self, number: int) -> Iterator[SessionBatch]:
        self._begun = {name: stream.capture() for name, stream in self._streams.items()}
        self._used, self._order = 0, ""
        return self._noted(self._passes.begin(number))

    def rest(self, number: int) -> Iterator[SessionBatch]:
        now = self._captured_own()
        for name, stream in self._streams.items():
            stream.restore(self._begun[name])
        drawn = self._passes.begin(number, skip=self._used)
        if self._passes.skipped_order not in (self._order, None):
            what = (
                f"the sampler of the loader drew other samples for the first {self._used} batches of this pass than "
                "before the interruption, so the pass cannot be continued."
            )
            fix = (
                "give the sampler state_dict and load_state_dict, or let it draw its whole order when a pass begins, "
                "from a random stream or a generator of its own"
            )
            raise SessionError(what=what, fix=f"{fix}.")
        if self._is_drawn_on_demand:
            # Training may have changed these states since the pass began. Workers draw ahead of training.
            self._restore_own(now)
        return self._noted(drawn)

    def capture(self) -> Any:
        within = {"begun": self._begun, "used": self._used, "order": self._order} if self._begun else {}
        return within | {"own": self._captured_own()}

    def restore(self, tree: Any) -> None:
        self._begun, self._used, self._order = tree.get("begun", {}), tree.get("used", 0), tree.get("order", "")
        self._restore_own(tree["own"])

    def _captured_own(self) -> dict[str, Any]:
        """Return the state of the loader and its samplers, without the global random streams."""
        return {name: it.capture() for name, it in self._streams.items() if not name.startswith(RNG_PREFIX)}

    def _restore_own(self, states: Mapping[str, Any]) -> None:
        for name, state in states.items():
            if name in self._streams:
                self._streams[name].restore(state)

    def _noted(self, drawn: Iterator[Drawn]) -> Iterator[SessionBatch]:
        for each in drawn:
            self._used, self._order = self._used + 1, each.order
            yield SessionBatch(each.content, each.ids)
        self._begun, self._used, self._order = {}, 0, ""


class _OfState:
    """A loader or iterable data set that has its own state, and can continue from this state."""

    def __init__(self, loader: Any, holder: Stateful) -> None:
        self._loader, self._holder = loader, holder
        self._restored: Any = None
        self._is_begun = False

    def first(self, number: int) -> Iterator[SessionBatch]:
        self._restored, self._is_begun = None, True
        return (SessionBatch(content, _NONE) for content in self._loader)

    rest = first

    def capture(self) -> Any:
        # There is no state before the loader is iterated. To return a state, the loader would begin to iterate, and
        # would draw from the random streams.
        if self._restored is not None:
            return self._restored
        return self._holder.state_dict() if self._is_begun else None

    def restore(self, tree: Any) -> None:
        self._restored = tree
        if tree is not None:
            self._holder.load_state_dict(tree)


class _OfRange:
    """A range of numbers as a source of batches. The only state is the position."""

    def __init__(self, numbers: range) -> None:
        self._numbers = self._begun = numbers
        self._used = 0

    def first(self, number: int) -> Iterator[SessionBatch]:
        self._begun, self._used = self._numbers, 0
        return self._noted()

    def rest(self, number: int) -> Iterator[SessionBatch]:
        if self._begun != self._numbers:
            what = f"run.batches({self._numbers}) was run.batches({self._begun}) before the interruption of this pass."
            fix = f"loop over {self._begun} until this pass ends; another range may follow in a later epoch."
            raise SessionError(what=what, fix=fix)
        return self._noted()

    def capture(self) -> Any:
        return {"used": self._used, "numbers": [self._begun.start, self._begun.stop, self._begun.step]}

    def restore(self, tree: Any) -> None:
        self._used, self._begun = int(tree["used"]), range(*tree["numbers"])

    def _noted(self) -> Iterator[SessionBatch]:
        for content in self._numbers[self._used :]:
            self._used += 1
            yield SessionBatch(content, _NONE)


def _source_of(loader: Any, *, seed: int) -> BatchSource:
    if isinstance(loader, range):
        return _OfRange(loader)
    if _has_state(loader):
        return _OfState(loader, loader)
    if not isinstance(loader, DataLoader):
        what = f"run.batches() got {in_words(loader)}, which is not a DataLoader and has no state."
        fix = (
            "give it a torch.utils.data.DataLoader, an object with state_dict, or a range whose numbers the inner loop "
            "takes its batches by."
        )
        raise SessionError(what=what, fix=fix)
    if not isinstance(loader.dataset, IterableDataset):
        return _OfSampler(loader, seed=seed)
    dataset: Any = loader.dataset
    is_stateful = has(dataset, "state_dict", "load_state_dict")
    if is_stateful and loader.num_workers == 0:
        return _OfState(loader, dataset)
    name = type(loader.dataset).__name__
    why = "has no state" if not is_stateful else "has its state in worker processes"
    what = f"run.batches() got a DataLoader whose data set, the iterable {name}, {why}: it has no position to resume."
    raise SessionError(what=what, fix=f"{_WAYS_OUT}.")


def _has_state(loader: Any) -> bool:
    if not has(loader, "state_dict", "load_state_dict"):
        return False
    if not type(loader).__module__.startswith("accelerate."):
        return True
    return bool(attribute(loader, "use_stateful_dataloader", False))  # Otherwise its two methods only raise.


def _passes_of(loader: DataLoader[Any], *, seed: int) -> Passes:
    """The passes over the loader. If the loader has its own `__iter__`, as in accelerate, the passes iterate over the
    loader itself."""
    is_plain = type(loader).__iter__ is DataLoader.__iter__
    return LoaderPasses(loader, seed=seed) if is_plain else RepeatedPasses(loader)


def _length_of(loader: Any) -> int | None:
    """Number of batches in a pass; None for a loader with a state, because a loader with a state may be in the middle
    of a pass."""
    if isinstance(loader, range):
        return len(loader)
    is_plain = isinstance(loader, DataLoader) and not _has_state(loader)
    if not is_plain or isinstance(loader.dataset, IterableDataset):
        return None
    try:
        return len(loader)
    except TypeError:
        return None  # A sampler without a length.
