"""The untracked state of a recipe: values that training changes but that no component contains."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from segue.continuity.carried.leaves import UseOfLeaves, use_by
from segue.continuity.code_hash import code_hashes
from segue.continuity.live_tree import parts_held
from segue.continuity.naming import PROCESS
from segue.continuity.recipe_diff import HYPERPARAMETERS, MACHINE, MODEL, SURROUNDINGS, UNTRACKED, VALUES
from segue.continuity.untracked.marks import Mark, mark_of
from segue.continuity.untracked.place import Leaf, name_of_definition
from segue.continuity.untracked.reach import Reach
from segue.continuity.untracked.value_watch import Watch
from segue.data.sampled import has_own_sampler
from segue.recipe import Recipe
from segue.records import Finding
from segue.trainer.ranks.ddp import bare
from segue.trainer.workloads.opened_files import is_only_written, opened_files
from segue.trainer.workloads.surroundings import MOST_FILES, file_readers, machine, path_in, reader_of, surroundings
from segue.user_objects import has, in_words

log = logging.getLogger(__name__)

_METRIC = "evaluate"
_OF_STEPS = ("loss", "step", "after_step", "data.dataset", "data.collate_fn")


class OutsideState:
    """Values outside every component. Each checkpoint records these values, to explain a replay that differs. No resume
    restores these values."""

    def __init__(
        self,
        walk: Callable[[], Reach],
        *,
        use: UseOfLeaves | None = None,
        metric_code: Mapping[str, str] | None = None,
        is_program: bool = False,
        others: OtherHands | None = None,
    ) -> None:
        """`walk` visits all objects that the training code can reach. The constructor calls `walk`, and some saves call
        it again. `use` knows which values affect later steps. By default, the code that `walk` reaches decides which
        values affect later steps. `metric_code` has the hashes of the code of `evaluate`. If there is no `evaluate`,
        `metric_code` is None.
        """
        self._opened: dict[str, Mark] = {}
        """Files whose names the code computes at run time. The value is the file's mark (`mark_of`) at the time when
        segue first saw the file."""
        found = walk()
        self._surroundings = surroundings(found.functions, found.files)
        self._walk, self._metric_code = walk, dict(metric_code) if metric_code is not None else None
        use = use or use_by(found.functions)
        self._watch, self._is_program = Watch(self._reached, use=use, is_program=is_program), is_program
        self._others = others
        self._saves = self._known = 0

    def capture(self) -> Any:
        self._add_opened_files()
        around = {name: mark_of(read()) for name, read in self._surroundings.items()}
        recorded = {VALUES: self._watch.changed(), SURROUNDINGS: around, MACHINE: machine()}
        return recorded | ({_METRIC: self._metric_code} if self._metric_code is not None else {})

    def restore(self, tree: Any) -> None:
        """Restore no value. From this call on, also record the files and variables that the previous attempt has
        read."""
        for name in tree.get(SURROUNDINGS, {}):
            read = reader_of(name) if name not in self._surroundings else None
            if read is not None and mark_of(read()) is not None and len(self._opened) < MOST_FILES:
                self._surroundings[name] = read
                self._opened[name] = mark_of(read())

    def look(self, trees: dict[str, Any]) -> tuple[Finding, ...]:
        """Return findings about changed values that are in none of the captured components `trees`. Each finding is
        returned only once.

        At the saves 1, 2, 4, 8, ..., the method inspects all values again. The method therefore finds a change soon,
        and thousands of saves need only about a dozen inspections. After an inspection, the method adds the new record
        to `trees`.
        """
        self._saves += 1
        if self._saves & (self._saves - 1):
            return ()
        try:
            found = self._watch.look(trees)
        except Exception:  # An inspection must not end an attempt.
            log.warning("could not look for state outside the components", exc_info=True)
            found = ()
        trees[UNTRACKED] = self.capture()
        return found

    def lost(self, committed: Mapping[str, Any]) -> tuple[Finding, ...]:
        """Return findings about values that differ from the commit. `committed` is the state that the commit has
        recorded."""
        values = committed.get(VALUES, {})
        self._watch.known_before(values)
        now = self._watch.marks_of(values)
        lost = [path for path, mark in values.items() if path not in now or now[path] != mark]
        return self._watch.findings_of(lost, before=values)

    def by_another_hand(
        self, captured: Callable[[], Mapping[str, Any]], committed: Mapping[str, Any]
    ) -> tuple[Finding, ...]:
        """Return findings about settings that have changed since the build, but had not changed at the commit."""
        if self._others is None:
            return ()
        trees = captured()
        settings = self._watch.changed_and_unknown(trees, beneath="model", known=committed.get(VALUES, {}))
        return tuple(self._others.findings(settings))

    def of_process(self) -> tuple[Finding, ...]:
        """Return a finding about values that are never compared, because they differ in each process."""
        found = self._watch.of_process(_OF_STEPS)
        return (Finding(component=PROCESS, channel="process", sentence=", ".join(found)),) if found else ()

    def has_metric_of(self, committed: Mapping[str, Any]) -> bool:
        """Whether the code of `evaluate` has not changed since the commit."""
        return self._metric_code is not None and committed.get(_METRIC) == self._metric_code

    def _add_opened_files(self) -> None:
        # A program also opens files that it writes itself, for example logs and its own checkpoints.
        opened = opened_files() if not self._is_program else ()
        if len(opened) > self._known:
            self._known = len(opened)
            found = {name: read for name, read in file_readers(opened).items() if name not in self._surroundings}
            self._opened |= {name: mark_of(read()) for name, read in found.items()}
            self._surroundings |= found

    def _reached(self) -> Reach:
        found = self._walk()
        # A file that training writes may not have existed before.
        self._surroundings = surroundings(found.functions, found.files) | self._surroundings
        for name, read in self._surroundings.items():
            if name in self._opened and mark_of(read()) == self._opened[name]:
                continue  # Training only reads it.
            if is_only_written(path_in(name) or ""):
                continue
            found.leaves[name] = Leaf(name, "", SURROUNDINGS, read)
        return found


_OF_LOADERS = frozenset(vars(DataLoader([0]))) | {"_iterator"}  # type: ignore[arg-type]


def parts_of_loader(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return, by name, the objects that a loader calls, and the objects that the user has set as attributes of the
    loader."""
    parts = {name: getattr(loader, name) for name in ("dataset", "collate_fn", "worker_init_fn")}
    parts |= {name: getattr(loader, name) for name in vars(loader).keys() - _OF_LOADERS}
    if has_own_sampler(loader):
        parts["sampler"] = loader.batch_sampler if loader.batch_size is None else loader.sampler
    return parts


def of_recipe(recipe: Recipe, *, build: Callable[..., Any]) -> OutsideState:
    """Find the state of a newly built recipe that no component contains."""
    home = str(build.__module__).partition(".")[0]
    metric_code = code_hashes([recipe.evaluate], home=home) if recipe.evaluate is not None else None
    scopes = (build.__code__,) if isinstance(build, FunctionType) else ()
    others = OtherHands(bare(recipe.model))
    return OutsideState(lambda: reached(recipe, home=home, scopes=scopes), metric_code=metric_code, others=others)


def reached(recipe: Recipe, *, home: str, scopes: tuple[CodeType, ...] = ()) -> Reach:
    """Collect all values that a recipe's objects and functions can reach. Parts of a component are listed under the
    name of the component.

    `scopes` has the code of the function that builds the recipe.
    """
    found = Reach(home, scopes=scopes)
    model = bare(recipe.model)
    found.own("recipe", [recipe])
    found.own("model", model.modules())
    components = {**recipe.optimizers, **recipe.schedulers, "scaler": recipe.scaler}
    extra = {f"extra.{key}": target for key, target in recipe.extra.items()}
    for name, target in {**components, **extra}.items():
        found.own(name, [target] if has(target, "state_dict", "load_state_dict") else parts_held(target))
    # State that `evaluate` reads is collected separately, so that a different metric can be told from different steps.
    fields = {**extra, **components, "model": model, "evaluate": recipe.evaluate, "loss": recipe.loss}
    fields |= {"step": recipe.step, "after_step": recipe.after_step, "on_epoch": recipe.on_epoch}
    fields |= {f"data.{name}": target for name, target in parts_of_loader(recipe.data).items()}
    for name, target in fields.items():
        if target is not None:
            expression = _expression(name, target, scopes)
            holder, of = ("recipe.data", recipe.data) if name.startswith("data.") else ("", None)
            found.add(name, lambda target=target: target, expression=expression, holder=holder, of=of)  # type: ignore[misc]
    return found


def _expression(name: str, target: Any, scopes: tuple[CodeType, ...]) -> str:
    """The expression for a field of the recipe: the name of the function in this field, or a path from the return value
    of `build`."""
    if isinstance(target, FunctionType) and (known := name_of_definition(target, scopes)):
        return known
    kind, _, key = name.partition(".")
    return f'recipe.{kind}["{key}"]' if key and kind != "data" else f"recipe.{name}"


_HOOKS_OF_MODULES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_CHANNEL = "setup"
FIX = "other code changes it after the restore: change it in build, before the state is restored, or only in steps"


def hooks_of(model: nn.Module) -> Counter[str]:
    """Count the hooks of each module and parameter, by path and kind of hook."""
    found: Counter[str] = Counter()
    for name, module in model.named_modules():
        for table in _HOOKS_OF_MODULES:
            if count := _count(vars(module).get(table)):
                found[f"{_path(name)} ({table.strip('_').replace('_', ' ')})"] = count
    for name, parameter in model.named_parameters():
        for table in _HOOKS_OF_TENSORS:
            if count := _count(getattr(parameter, table, None)):
                found[f"{_path(name)} (hooks of its gradient)"] += count
    return found


def _path(name: str) -> str:
    return f"model.{name}" if name else "model"


def _count(hooks: Any) -> int:
    """Count the hooks, except segue's own hooks, which measure a step."""
    return sum(not _is_segues(hook) for hook in hooks.values()) if isinstance(hooks, Mapping) else 0


def _is_segues(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("segue.")


class OtherHands:
    """The hooks and modules of a model as built, for a comparison with the hooks and modules before the first step."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._modules = model, dict(model.named_modules())
        self._built = hooks_of(model)

    def findings(self, settings: Mapping[str, str]) -> Iterator[Finding]:
        """Yield findings about hooks, modules, and `settings` (by path) that have changed since the build."""
        now = hooks_of(self._model)
        for path in sorted({*now, *self._built}):
            if now[path] != self._built[path]:
                said = f"{path}: {self._built[path]} as built, now {now[path]}"
                yield Finding(component=MODEL, channel=_CHANNEL, sentence=said, fix=FIX)
        modules = dict(self._model.named_modules())
        for name, built in self._modules.items():
            if (module := modules.get(name)) is not built:
                said = f"{_path(name)} was a {type(built).__qualname__}, now {in_words(module)}"
                yield Finding(component=MODEL, channel=_CHANNEL, sentence=said, fix=FIX)
        for path, change in settings.items():
            yield Finding(component=HYPERPARAMETERS, channel=_CHANNEL, sentence=f"{path} {change}", fix=FIX)
