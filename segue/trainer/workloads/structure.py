"""The structure of a recipe or a program: the modules, tensors and parameter groups that a resume builds again.

A state_dict has values but no structure. A state_dict cannot restore a layer that was added during the run, or a weight
that was pruned or replaced. If the structure changes, the next save detects the change by names and identities.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from segue.recipe import Recipe
from segue.trainer.ranks.ddp import bare
from segue.trainer.workloads.components import Component, OptimizerState
from segue.trainer.workloads.structure_shape import Groups, Shape, Watched, kept_buffers
from segue.user_objects import attribute, settings_shown

_FOREIGN = "a tensor that is not a parameter of the model"


class Structure:
    """The structure of modules and optimizers when they were built. Each save compares the current structure with the
    structure as built."""

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        optimizers: Mapping[str, Any],
        *,
        plain: Collection[str] = (),
        are_groups_restored: bool = False,
    ) -> None:
        """`plain` contains the names of modules that a `load_state_dict` of their own restores. These modules do not
        accept new buffers.

        If `are_groups_restored` is True, a resume gives each torch optimizer the parameters that the optimizer had at
        the save.
        """
        self._roots, self._optimizers, self._are_groups_restored = dict(modules), dict(optimizers), are_groups_restored
        self._plain = tuple(f"{name}." for name in plain)
        self._built = Shape.of(self._roots, self._optimizers)
        self._watched = self._watch(self._built)
        self._has_settled = False

    def step_made(self) -> None:
        """After the first step, accept new modules that have no state, because a resume makes a first step too.

        Some models create a cache or a table in their first forward pass.
        """
        if self._has_settled:
            return
        self._has_settled = True
        if self._watched.is_unchanged():
            return
        built, now = self._built.modules, self._look().modules
        is_kept = {name: name in now or bool(kept_buffers(module)) for name, module in built.items()}
        kept = {name: now.get(name, module) for name, module in built.items() if is_kept[name]}
        made = {name: module for name, module in now.items() if name not in built and not kept_buffers(module)}
        self._built = self._built._replace(modules=kept | made)

    def changes(self) -> tuple[str, ...]:
        """Describe in words the changes that a resume would not repeat."""
        if self._watched.is_unchanged():
            return ()
        now = self._look()
        changes = [*_of_modules(self._built, now)]
        apart = tuple(f"{name}." for name, _ in changes)  # Parameters need no names.
        found = [f"module {name} {what}" for name, what in changes]
        tensors = (*_of_parameters(self._built, now), *_of_buffers(self._built, now, within=self._plain))
        found += [f"{name} {what}" for name, what in tensors if not name.startswith(apart)]
        if not now.is_spread:  # FSDP itself replaces whole tensors by sharded tensors.
            found += [f"{name} {what}" for name, what in _of_values(self._built, now) if not name.startswith(apart)]
            found += self._of_groups(now)
        if not found:
            self._watched = self._watch(now)  # Keeps the next check short.
        return tuple(found)

    def _watch(self, shape: Shape) -> Watched:
        return Watched.of(shape, self._optimizers, plain=self._plain)

    def _look(self) -> Shape:
        return Shape.of(self._roots, self._optimizers)

    def _of_groups(self, now: Shape) -> Iterator[str]:
        names = {id(parameter): name for name, parameter in reversed(now.parameters.items())}
        for component, optimizer in self._optimizers.items():
            before, held = self._built.groups[component], now.groups[component]
            if _ids(before) == _ids(held):
                continue
            known = {id(parameter) for group in held for parameter in group}
            is_restored = self._are_groups_restored and isinstance(optimizer, torch.optim.Optimizer)
            if any(
                isinstance(each, torch.Tensor) and id(each) not in known for each in attribute(optimizer, "state", ())
            ):
                yield f"{component} has state of parameters that it no longer holds, which torch cannot save"
            elif not is_restored or not known <= names.keys():
                yield f"{component} {_difference(before, held, names | self._built.names)}"


def structure_of(recipe: Recipe) -> Structure:
    """The structure of a newly built recipe: its model, and the modules and optimizers in `extra`."""
    modules = {f"extra.{key}": each for key, each in recipe.extra.items() if isinstance(each, nn.Module)}
    return Structure(
        {"": bare(recipe.model)} | {name: each for name, each in modules.items() if each is not recipe.model},
        all_optimizers(recipe),
        plain=modules,
        are_groups_restored=True,
    )


def structure_of_objects(objects: Mapping[str, Any]) -> Structure:
    """The structure of the modules and optimizers that a program tracks, by the program's names."""
    modules = {name: bare(each) for name, each in objects.items() if isinstance(each, nn.Module)}
    optimizers = {name: each for name, each in objects.items() if isinstance(each, torch.optim.Optimizer)}
    return Structure(modules, optimizers)


def _of_modules(built: Shape, now: Shape) -> Iterator[tuple[str, str]]:
    """Yield the modules that are new, are removed, or have another class. The modules inside them are left out."""
    found: list[tuple[str, str]] = []
    done: tuple[str, ...] = ()
    for name in dict.fromkeys((*built.modules, *now.modules)):
        before, after = built.modules.get(name), now.modules.get(name)
        if before is after or name.startswith(done):
            continue
        if before is not None and after is not None:
            if _words(before) == _words(after):
                continue
            found.append((name, f"was {_words(before)}, now {_words(after)}"))
        elif _is_layer(name, after if before is None else before, now.modules | built.modules):
            found.append((name, "is gone" if after is None else f"({_words(after)}) is new"))
        done = (*done, f"{name}.")
    return iter(found)


def _is_layer(name: str, module: nn.Module | None, modules: Mapping[str, nn.Module]) -> bool:
    """Whether training would differ without the module. Training would differ if the module has state, or if a torch
    container calls the module.

    A module without state may also be a submodule of a user's module. The user's code creates and calls this submodule,
    and this code is the same after a resume.
    """
    parent = modules.get(name.rpartition(".")[0])
    has_state = module is not None and any(map(_has_state, module.modules()))
    return has_state or isinstance(parent, (nn.Sequential, nn.ModuleList, nn.ModuleDict))


def _has_state(module: nn.Module) -> bool:
    return bool(kept_buffers(module)) or any(True for _ in module.parameters(recurse=False))


def _of_parameters(built: Shape, now: Shape) -> Iterator[tuple[str, str]]:
    for name in dict.fromkeys((*built.parameters, *now.parameters)):
        if (name in built.parameters) is not (name in now.parameters):
            yield name, "is a new parameter" if name in now.parameters else "is no longer a parameter"


def _of_buffers(built: Shape, now: Shape, *, within: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name in sorted(built.buffers ^ now.buffers):
        if name.startswith(within):
            yield name, "is a new buffer" if name in now.buffers else "is no longer a buffer"


def _of_values(built: Shape, now: Shape) -> Iterator[tuple[str, str]]:
    """Yield parameters whose type, shape or identity differs from the build."""
    held = {id(parameter) for groups in now.groups.values() for group in groups for parameter in group}
    first_before, first_now = built.names, now.names
    for name, parameter in now.parameters.items():
        before = built.parameters.get(name)
        if before is None:
            continue
        if built.specs.get(name, now.specs.get(name)) != now.specs.get(name):
            yield name, f"was {built.specs[name]}, now {now.specs.get(name)}"
        elif first_before[id(before)] != first_now[id(parameter)]:
            other = first_now[id(parameter)]
            yield name, f"is now one tensor with {other}" if other != name else "no longer shares its tensor"
        elif before is not parameter and id(before) in held:
            yield name, "was replaced by another tensor, and the optimizer still holds the old tensor"


def _difference(before: Groups, held: Groups, names: Mapping[int, str]) -> str:
    former, present = ({id(each) for group in groups for each in group} for groups in (before, held))
    added = [names.get(each, _FOREIGN) for each in present - former]
    left = [names.get(each, _FOREIGN) for each in former - present]
    said = [f"holds {_shown(added)} since"] * bool(added) + [f"no longer holds {_shown(left)}"] * bool(left)
    return " and ".join(said) or f"has its parameters in other groups ({len(before)} as built, now {len(held)})"


def _shown(names: list[str]) -> str:
    names = sorted(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _ids(groups: Groups) -> list[list[int]]:
    return [[*map(id, group)] for group in groups]


def _words(module: nn.Module) -> str:
    """Name of the module's class, and the printed settings of the module."""
    settings = settings_shown(module)
    return f"{type(module).__qualname__}({'' if ' at 0x' in settings else settings})"


_BOUND = "bound"
"""Key of changed groups in the saved state. If the groups have not changed, the saved state does not contain this key,
and its bytes stay the same."""


def all_optimizers(recipe: Recipe) -> dict[str, Any]:
    """All optimizers of a recipe, including the optimizers in `extra`, by component name."""
    further = {f"extra.{key}": each for key, each in recipe.extra.items() if isinstance(each, torch.optim.Optimizer)}
    return {**recipe.optimizers, **further}


def regrouped(recipe: Recipe, components: Mapping[str, Component]) -> dict[str, Component]:
    """Components of the recipe's torch optimizers. A restore gives each optimizer the groups that the optimizer had at
    the save."""
    modules = {f"extra.{key}.": each for key, each in recipe.extra.items() if isinstance(each, nn.Module)}
    roots = {"": bare(recipe.model)} | modules

    def parameters() -> dict[str, torch.Tensor]:
        found = ((start, *each) for start, root in roots.items() for each in root.named_parameters())
        return {start + name: parameter for start, name, parameter in found}

    found = {name: each for name, each in all_optimizers(recipe).items() if isinstance(each, torch.optim.Optimizer)}
    return {
        name: RegroupedOptimizerState(each, parameters=parameters) for name, each in found.items() if name in components
    }


class RegroupedOptimizerState(OptimizerState):
    """The state of an optimizer, and its groups if they have changed since the build."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, parameters: Callable[[], Mapping[str, torch.Tensor]]
    ) -> None:
        """`parameters` returns the live parameters by name."""
        super().__init__(optimizer)
        self._parameters = parameters
        self._built, self._built_names = self._held(), self._names()

    def capture(self) -> Any:
        tree = super().capture()
        if [[*map(id, group)] for group in self._held()] == [[*map(id, group)] for group in self._built]:
            return tree
        names = self._names()
        # If a parameter was replaced in the model as well as here, a resume needs nothing further.
        return tree if names == self._built_names else {**tree, _BOUND: names}

    def restore(self, tree: Any) -> None:
        if _BOUND in tree:
            self._bind(tree[_BOUND], tree["param_groups"])
        super().restore({name: value for name, value in tree.items() if name != _BOUND})

    def _bind(self, bound: list[list[str]], stored_groups: list[dict[str, Any]]) -> None:
        live, groups = self._parameters(), self._optimizer.param_groups
        held = [[live[name] for name in names] for names in bound]
        del groups[len(held) :]
        for group, parameters in zip(groups, held, strict=False):
            group["params"] = parameters
        for number in range(len(groups), len(held)):
            settings = {name: value for name, value in stored_groups[number].items() if name != "params"}
            names = settings.pop("param_names", None)
            # torch accepts names of parameters only together with the parameters.
            given = held[number] if names is None else [*zip(names, held[number], strict=True)]
            self._optimizer.add_param_group({"params": given, **settings})

    def _held(self) -> list[list[torch.Tensor]]:
        return [[*group["params"]] for group in self._optimizer.param_groups]

    def _names(self) -> list[list[str]]:
        names = {id(parameter): name for name, parameter in reversed([*self._parameters().items()])}
        # A tensor without a name is refused before the save.
        return [[names.get(id(each), "") for each in group] for group in self._held()]
