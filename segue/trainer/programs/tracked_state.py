"""The state of a program: its tracked objects and values, by component name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from segue.checkpoints.format.names import FOLDER, of_rank, rank_of
from segue.continuity.recipe_diff import NOT_STATE, RESTORED, UNTRACKED
from segue.continuity.state_marks import Marks, begin_marks
from segue.errors import SessionError
from segue.records import Finding
from segue.trainer.programs.folder import Folder
from segue.trainer.programs.owner import Owner
from segue.trainer.programs.program_outside import of_program
from segue.trainer.programs.program_record import ProgramRecord
from segue.trainer.programs.step_measures import parameters_of
from segue.trainer.programs.tracked import AsStored, Carried, Variable, components_of_object
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.ranks.ddp import bare
from segue.trainer.workloads.components import Component, Progress
from segue.trainer.workloads.outside import OutsideState
from segue.trainer.workloads.state import PROGRESS, marked_parts, rng_components
from segue.trainer.workloads.structure import Structure, structure_of_objects
from segue.trainer.workloads.values import RestoredValues

_ANY_ORDER_IS_THE_SAME = 2
"""Largest number of summands whose sum does not depend on their order."""


def named_on(ranks: Ranks, target: Any, components: Mapping[str, Component]) -> dict[str, Component]:
    """Return the components of a tracked object. If the ranks do not share the object's state, the names of the
    components contain the rank.

    All ranks share the state of modules and optimizers. Each step compares the norms of gradients and parameters over
    all ranks, to check that the state is shared.
    """
    if isinstance(target, nn.Module | torch.optim.Optimizer):
        return dict(components)
    return {of_rank(name, ranks.rank): component for name, component in components.items()}


def refuse_changing_sums(name: str, target: Any, ranks: Ranks) -> None:
    """Refuse a DDP module that changes the order of its sums after the first step of an attempt. No resume can repeat
    such a change.

    By default, DDP rearranges its buckets after the first step; with `find_unused_parameters`, the buckets stay the
    same.

    Raises:
        SessionError: the module is a DDP module that rearranges its buckets.
    """
    if ranks.count <= _ANY_ORDER_IS_THE_SAME or not isinstance(target, DistributedDataParallel):
        return
    if not target.find_unused_parameters or target.static_graph:
        what = (
            f"run.track({name}=...) got DistributedDataParallel over {ranks.count} ranks, which rearranges its buckets "
            "after the first step: a resumed run would sum in another order than before, and differ by a bit."
        )
        raise SessionError(what=what, fix="give it find_unused_parameters=True, and leave static_graph off.")


def same_on_every_rank(objects: Mapping[str, Any]) -> Callable[[str], bool]:
    """Return a predicate that tells if DDP keeps the values of a state tensor equal on all ranks."""
    modules = {name: each for name, each in objects.items() if isinstance(each, DistributedDataParallel)}
    parameters = {f"{name}.state.{path}" for name, each in modules.items() for path, _ in bare(each).named_parameters()}
    held = {id(parameter) for each in modules.values() for parameter in each.parameters()}
    optimizers = {name: each for name, each in objects.items() if isinstance(each, torch.optim.Optimizer)}
    states = tuple(f"{name}." for name, each in optimizers.items() if all(id(p) in held for p in parameters_of(each)))
    return lambda tensor: tensor in parameters or tensor.startswith(states)


class _Complete(NamedTuple):
    """Objects that can be made only after the program has tracked all its objects."""

    outside: OutsideState | None
    """The object that searches for untracked state; None on ranks that do not report."""
    structure: Structure
    is_same_everywhere: Callable[[str], bool]


class TrackedState:
    """The tracked state of one program in this process. Until the first step, objects are added and restored."""

    def __init__(self, owner: Owner, record: ProgramRecord | None) -> None:
        self._owner, self._record = owner, record
        self.progress = Progress()
        self.components: dict[str, Component] = {PROGRESS: self.progress}
        owner.restore(self.components)
        self.objects: dict[str, Any] = {}
        """The tracked objects, by name."""
        self._variables: set[str] = set()
        self._carried: dict[str, Carried] = {}
        self.folder: Folder | None = None
        """The folder that the framework commits; None if the program has none."""
        self._complete: _Complete | None = None

    def track(self, objects: Mapping[str, Any]) -> None:
        """Track these objects under their names."""
        for name, target in objects.items():
            if self._record is not None:
                self._record.add(name, target)
            refuse_changing_sums(name, target, self._owner.ranks)
            self.add(name, components_of_object(name, target), call=f"run.track({name}=...)", target=target)
            self.objects[name] = target

    def track_variables(self, namespace: dict[str, Any], names: tuple[str, ...]) -> None:
        """Track these variables of a namespace."""
        for name in names:
            self.add(name, {name: Variable(namespace, name)}, call=f"run.track_variables(..., {name!r})")
            self._variables.add(name)

    def carry(self, name: str, values: Mapping[str, Any]) -> SimpleNamespace:
        """Track these values as attributes of a namespace. If the name is already known, the namespace starts again
        with these values."""
        known = self._carried.get(name)
        if known is not None:
            return known.begin(values)
        made = Carried(name, values)
        self.add(name, {name: made}, call=f"run.carry({name!r}, ...)")
        self._carried[name] = made
        return made.namespace

    def restore_folder(self, path: Path) -> Path | None:
        """Track the folder `path`, and write the committed files into it."""
        if self._owner.ranks.count > 1:
            what = f"run.restore_folder() on {self._owner.ranks.count} ranks: only one process can commit a folder."
            raise SessionError(
                what=what, fix="train with ranks = 1, or use run.track() for model and optimizer instead of a folder."
            )
        if self.folder is None:
            self.folder = Folder()
            self.add(FOLDER, {FOLDER: self.folder}, call="run.restore_folder()")
        return self.folder.write_to(path)

    def commit_folder(
        self, path: Path, *, step: int, instead: Mapping[str, bytes | Path], best: Mapping[str, str] | None
    ) -> None:
        """Use the folder as the state after `step` steps. The files in `instead` replace files of the folder.

        Raises:
            SessionError: the folder is not tracked, or it cannot be committed.
        """
        if self.folder is None:
            what = "run.commit_folder() was called without run.restore_folder() before the loop."
            raise SessionError(what=what, fix="call run.restore_folder(path), which restores the folder in a resume.")
        self.folder.take(path, step=step, instead=instead, best=best)

    def add(self, name: str, found: dict[str, Component], *, call: str, target: Any = None) -> None:
        """Add and restore the components of a tracked object. `call` is the text of the program's call, for messages.

        Raises:
            SessionError: the first step was already made, or the name cannot be used.
        """
        self.refuse_after_first_step(call)
        # A name with a dot would look like a part of another component, and components of reserved names are not
        # compared.
        taken = [each for each in found if each in self.components or each in NOT_STATE]
        if taken or not name.isidentifier():
            what = f"{call}: the name {(taken or [name])[0]!r} is already used or is not a plain name."
            raise SessionError(what=what, fix="give it another name.")
        named = named_on(self._owner.ranks, target, found)
        self.components |= named
        self._owner.restore(named)

    def refuse_after_first_step(self, call: str) -> None:
        """Refuse a call if the first step is already due.

        Raises:
            SessionError: the first step is already due.
        """
        if self._complete is not None:
            raise SessionError(what=f"{call} came after the first step.", fix="call it before the loop.")

    def complete(self, pending: Mapping[str, Component], *, loaders: Mapping[str, Any], is_over: bool) -> None:
        """Add the components that segue itself tracks, and restore all components. After `complete`, no component can
        be added.

        `pending` has the components of the steps. If `is_over` is True, the program makes no further step.
        """
        ranks, objects = self._owner.ranks, self.objects
        if is_over:
            # No epoch is left, so no code will call run.batches again.
            self.components |= {name: AsStored() for name in self._stored_of_this_rank() if name not in self.components}
        held = nn.ModuleList(each for each in objects.values() if isinstance(each, nn.Module))
        self.components |= named_on(ranks, None, pending) | rng_components(ranks, held)
        is_same_everywhere = same_on_every_rank(objects)
        if self._record is not None:
            self.components |= self._record.components(objects)
        self.components[RESTORED] = RestoredValues(self.components)
        # Restore all components, because the program may have changed any of them. The random streams are restored
        # last.
        self._owner.restore(self.components)
        outside = None
        if ranks.is_leader:
            outside = of_program(objects, loaders=loaders, components=self.components.keys())
            self.components[UNTRACKED] = outside
        self._complete = _Complete(outside, structure_of_objects(objects), is_same_everywhere)

    def _stored_of_this_rank(self) -> Iterator[str]:
        stored, rank = self._owner.stored, self._owner.ranks.rank
        return (name for name in stored if rank_of(name, stored) in (None, rank))

    def step_made(self) -> None:
        """Record that a step is counted, because the step may have changed the structure."""
        if self._complete is not None:
            self._complete.structure.step_made()

    def structure_changes(self) -> tuple[str, ...]:
        """Describe in words the changes of modules and optimizers that a resume would not repeat."""
        return () if self._complete is None else self._complete.structure.changes()

    def is_same_everywhere(self, tensor: str) -> bool:
        """Whether all ranks hold equal values of this state tensor."""
        return self._complete is not None and self._complete.is_same_everywhere(tensor)

    def look_outside(self, trees: dict[str, Any]) -> tuple[Finding, ...]:
        """Return findings about untracked state that training has changed. Each finding is returned only once."""
        outside = None if self._complete is None else self._complete.outside
        return () if outside is None else outside.look(trees)

    def begin_marks(self, *, of_values: bool) -> Marks:
        """Begin to compute the marks of the tracked state after a step.

        If `of_values` is False, compute only the marks of modules and optimizers, because the program changes other
        values between steps.
        """
        kinds: tuple[type, ...] = (object,) if of_values else (nn.Module, torch.optim.Optimizer)
        names: Collection[str] = {name for name, each in self.objects.items() if isinstance(each, kinds)}
        names = {*names, "rng", "modes", "buffers", *((*self._variables, *self._carried) if of_values else ())}
        tracked = {name: c for name, c in self.components.items() if name.partition(".")[0] in names}
        return begin_marks(marked_parts(tracked))
