"""The commit that the leader makes alone after another rank was lost in the middle of a step.

If no optimizer has begun its step since the last safe point, the parameters and the optimizer state are unchanged. All
other state may have changed in the forward pass, so the leader copies this state at each safe point. The leader has no
random streams of other ranks, so each rank publishes its streams before the vote at a safe point.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from segue.checkpoints.format.dtensor import is_sharded
from segue.checkpoints.format.state_tree import decode_tree
from segue.checkpoints.saving.staged_layout import copy_all
from segue.checkpoints.saving.staging import Encoded
from segue.continuity.recipe_diff import NOT_STATE
from segue.errors import HungRankError, RankFailedError, RankLostError
from segue.trainer.process.context import AttemptContext
from segue.trainer.ranks.ddp import bare
from segue.trainer.step_records import StepRecords
from segue.trainer.workloads.base import Workload
from segue.trainer.workloads.components import UnsavedBuffers
from segue.trainer.workloads.live_recipe import LiveRecipe
from segue.trainer.workloads.state import RNG_PREFIX
from segue.trainer.workloads.steps.own_step import held_by_optimizers

log = logging.getLogger(__name__)

_MOST_SHARE = 0.002
"""Largest share of a step that the copies of one safe point may take."""
_MEASURED = 5
"""Number of safe points at which the copies are measured."""
_MOST_SECONDS = 25.0
"""Longest wait for the commit, in seconds. torchrun kills the other ranks 30 s after a rank has crashed."""
_LEADER = "leader"
"""The leader's entry in the list of streams. The leader does not publish its streams."""

Commit = Callable[[Mapping[str, Encoded], tuple[int, ...], float], None]
"""A function that commits the live state. The arguments are the random streams of the ranks, the lost ranks, and the
longest wait in seconds."""


class _Kept(NamedTuple):
    """The state and streams of the last safe point."""

    step: int
    streams: tuple[str, ...]
    """Hash of the random streams of each rank."""


class Survivors:
    """One rank's part in the commit after the loss of another rank.

    Every call does nothing if there is only one rank, if the ranks shard the state or use accelerators, if a program
    trains, or if a module has a `get_extra_state` of its own. (An accelerator may run the optimizer's step although the
    sum of the gradients has failed.)
    """

    def __init__(self, context: AttemptContext, live: Workload) -> None:
        self._context, self._live, self._notes = context, live, context.group.notes
        self._start: StepStart | None = None
        self._kept: _Kept | None = None
        self._published, self._slot, self._gives_up = "", 0, False
        self._publish_seconds = 0.0
        self._measured: list[tuple[float, float]] = []
        """Begin and duration, in seconds, of the copies at each of the first safe points."""
        if self._notes is None or not isinstance(live, LiveRecipe) or context.device.type != "cpu":
            return
        model = live.recipe.model
        if not any(map(is_sharded, model.parameters())) and not any(map(_has_state_of_its_own, model.modules())):
            self._start = StepStart(live)
            self._hook = register_optimizer_step_pre_hook(lambda *_: self._forget())

    @property
    def needs_votes(self) -> bool:
        """Whether the ranks must vote at every safe point, so that the leader can keep the state of each one."""
        return self._start is not None

    def publish(self) -> tuple[str, ...]:
        """Publish this rank's random streams, if they have changed. Return the hash of the streams for the vote; empty
        if this rank does not take part."""
        if self._start is None or self._notes is None or self._gives_up:
            return ()
        began_at = self._context.clock.monotonic()
        if self._context.ranks.is_leader:
            return (_LEADER,)
        text = _text_of({n: c.capture() for n, c in self._live.components.items() if n.startswith(RNG_PREFIX)})
        if (known := _hash_of(text)) != self._published:
            # There are two slots, because this rank may be one safe point ahead of the leader.
            self._published, self._slot = known, 1 - self._slot
            self._notes.put_later(_key(self._context.ranks.rank, self._slot), text)
        self._publish_seconds = self._context.clock.monotonic() - began_at
        return (known,)

    def keep(self, streams: tuple[str, ...]) -> None:
        """Keep the state of this safe point. `streams` has the hashes from the vote of all ranks.

        All ranks read the objects in `extra` at the same safe points, because their `state_dict` may need all ranks.
        """
        if self._start is None:
            return
        if len(streams) < self._context.ranks.count:
            self._leave()
            log.info(
                "if a rank is lost, all steps since the last commit are lost: copies at each step take too long or fail"
            )
            return
        began_at, step = self._context.clock.monotonic(), self._live.progress.step
        if not step:  # The first step may add modules and buffers.
            return
        try:
            self._start.keep(copies=self._context.ranks.is_leader)
        except Exception:
            # Any exception: the objects of the user may raise it. Only saves must be able to read these objects.
            log.warning("the state of the recipe could not be copied step=%d", step, exc_info=True)
            self._kept, self._gives_up = None, True
            return
        self._kept = _Kept(step, streams)
        self._measure(began_at)

    @contextmanager
    def committing(self, commit: Commit, records: StepRecords) -> Iterator[None]:
        """A `with` block. If the block ends in the middle of a step because another rank was lost, `commit` is called
        next.

        If the commit fails, segue logs the error, and the attempt ends without this commit.
        """
        try:
            yield
        except (RankLostError, RankFailedError, HungRankError) as error:
            try:
                if self._context.ranks.is_leader:
                    self._context.activity.ending()
                    self._commit_after(error, commit, records)
            except Exception:
                # Any exception: the objects of the user may raise it, and the report must name the lost rank.
                log.warning("the state before the loss of the rank could not be committed", exc_info=True)
            raise
        finally:
            self._leave()

    def _commit_after(
        self, error: RankLostError | RankFailedError | HungRankError, commit: Commit, records: StepRecords
    ) -> None:
        kept, row, notes = self._kept, records.newest, self._notes
        lost = (error.rank,) if isinstance(error, RankFailedError) else error.ranks
        if self._start is None or notes is None or kept is None or row is None or row.step != kept.step or 0 in lost:
            log.info("the state at the last safe point is not known; nothing is committed after the loss of a rank")
            return
        if self._live.structure_changes() or not self._start.is_optimizer_unchanged():
            log.warning("the step has changed the model or the optimizer; nothing is committed step=%d", kept.step)
            return
        self._start.restore()
        if row.param_norm != self._live.parameter_norm():
            log.warning("the step has changed weights outside the optimizer; nothing is committed step=%d", kept.step)
            return
        streams: dict[str, Encoded] = {}
        for rank, known in enumerate(kept.streams[1:], start=1):
            texts = [notes.get(_key(rank, slot)) or "" for slot in range(2)]
            text = next((text for text in texts if _hash_of(text) == known), None)
            if text is None:
                log.warning("the random streams of a rank were not published; nothing is committed rank=%d", rank)
                return
            streams |= _encoded_in(text)
        commit(streams, lost, min(_MOST_SECONDS, self._context.spec.grace_seconds))

    def _measure(self, began_at: float) -> None:
        if len(self._measured) < _MEASURED:
            seconds = self._publish_seconds + self._context.clock.monotonic() - began_at
            self._measured.append((began_at, seconds))
            self._gives_up = len(self._measured) == _MEASURED and is_too_dear(self._measured)

    def _forget(self) -> None:
        self._kept = None

    def _leave(self) -> None:
        if self._start is not None:
            self._hook.remove()
        self._start = self._kept = None


def is_too_dear(measured: Sequence[tuple[float, float]]) -> bool:
    """Whether copies take too large a share of a step. `measured` contains, for each safe point, the start time and the
    duration of the copies, in seconds. The function is pure."""
    begins = [began_at for began_at, _ in measured]
    steps = [after - before for before, after in pairwise(begins)]
    return min(seconds for _, seconds in measured) > _MOST_SHARE * median(steps)


def _has_state_of_its_own(module: nn.Module) -> bool:
    return type(module).get_extra_state is not nn.Module.get_extra_state


class _Copy(NamedTuple):
    """What a forward pass may change, as it was at a safe point."""

    flags: list[Any]
    groups: list[tuple[dict[str, Any], dict[str, Any]]]
    """Each parameter group, and its hyperparameters."""
    tensors: list[tuple[Any, str, Any]]
    trees: dict[str, Encoded]
    marks: list[tuple[int, int]]
    """Address and version of each tensor that only an optimizer may change."""


class StepStart:
    """A copy of the state that a forward pass may change: buffers, modes, parameters that no optimizer trains,
    hyperparameters, random streams, and the objects of the recipe except its model and optimizers."""

    def __init__(self, live: LiveRecipe) -> None:
        self._recipe = live.recipe
        self._optimizers = list(live.recipe.optimizers.values())
        as_a_whole = NOT_STATE | {"model", "modes"} | live.recipe.optimizers.keys()
        self._others = {
            n: c for n, c in live.components.items() if n not in as_a_whole and type(c) is not UnsavedBuffers
        }
        self._places: list[tuple[Any, str]] = []
        self._flags: list[tuple[Any, str]] = []
        self._copy: _Copy | None = None

    def _find(self) -> None:
        """Find the tensors and modes of the model. The first step may still add some."""
        modules = list(bare(self._recipe.model).modules())
        trained = {id(each) for each in held_by_optimizers(self._recipe) if each.requires_grad}
        groups = [group for module in modules for group in (module._buffers, module._parameters)]
        self._places = [(group, name) for group in groups for name in group if id(group[name]) not in trained]
        parameters = [(parameter, "requires_grad") for parameter in bare(self._recipe.model).parameters()]
        self._flags = [*((module, "training") for module in modules), *parameters]

    def keep(self, *, copies: bool = True) -> None:
        """Copy the state of this safe point. If `copies` is False, only read the state of the user's objects."""
        trees = {name: each.capture() for name, each in self._others.items()}
        if not copies:
            return
        if not self._flags:
            self._find()
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        there = [at for at in self._places if at[0][at[1]] is not None]
        self._copy = _Copy(
            flags=[getattr(target, name) for target, name in self._flags],
            groups=[(g, {n: _apart(value) for n, value in g.items() if n != "params"}) for g in groups],
            tensors=[(group, name, _apart(group[name])) for group, name in there],
            trees={name: _cloned(Encoded.of(name, tree)) for name, tree in trees.items()},
            marks=self._marks_of_optimizer(),
        )

    def is_optimizer_unchanged(self) -> bool:
        """Whether the trained parameters and the optimizers' state are still those of the safe point, as far as torch
        counts changes. torch does not count changes through `.data`."""
        return self._copy is not None and self._marks_of_optimizer() == self._copy.marks

    def _marks_of_optimizer(self) -> list[tuple[int, int]]:
        state = [slot for optimizer in self._optimizers for slot in optimizer.state.values()]
        values = [value for slot in state if isinstance(slot, dict) for value in slot.values()]
        trained = [each for each in held_by_optimizers(self._recipe) if each.requires_grad]
        tensors = [*trained, *(value for value in values if isinstance(value, torch.Tensor))]
        return [(tensor.data_ptr(), tensor._version) for tensor in tensors]

    def restore(self) -> None:
        """Set the live objects back to the last safe point, whose state must have been copied."""
        copy = self._copy
        assert copy is not None
        copy_all([group[name] for group, name, _ in copy.tensors], [kept for *_, kept in copy.tensors])
        for (target, name), value in zip(self._flags, copy.flags, strict=True):
            setattr(target, name, value)
        for group, kept in copy.groups:
            group.update(kept)
        for name, (skeleton, tensors) in copy.trees.items():
            self._others[name].restore(decode_tree(skeleton, tensors))


def _apart(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _cloned(encoded: Encoded) -> Encoded:
    return encoded._replace(tensors={name: tensor.clone() for name, tensor in encoded.tensors.items()})


def _key(rank: int, slot: int) -> str:
    return f"streams/{rank}/{slot}"


def _hash_of(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())


def _text_of(trees: Mapping[str, Any]) -> str:
    """Return the random streams of a rank as text for the other ranks."""
    encoded = {name: Encoded.of(name, tree) for name, tree in trees.items()}
    return json.dumps({name: [each.skeleton, _as_text(each.tensors)] for name, each in encoded.items()})


def _as_text(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[str, str]]:
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    return {name: (array.dtype.str, base64.b64encode(array.tobytes()).decode()) for name, array in arrays.items()}


def _encoded_in(text: str) -> dict[str, Encoded]:
    """Decode the random streams in `text`, which is a result of `_text_of`."""
    return {name: Encoded(skeleton, _tensors_in(tensors)) for name, (skeleton, tensors) in json.loads(text).items()}


def _tensors_in(texts: Mapping[str, tuple[str, str]]) -> dict[str, torch.Tensor]:
    arrays = {name: np.frombuffer(base64.b64decode(data), kind) for name, (kind, data) in texts.items()}
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
