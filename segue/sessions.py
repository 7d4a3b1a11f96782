"""A training loop of the user's own: `segue.session()` gives it the features that recipes get from segue's loop.

Outside a segment a session changes nothing and writes nothing: the script runs as if segue were not there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Self

from segue.errors import SessionError
from segue.hosting import Bare, Host

if TYPE_CHECKING:
    from segue.hosting import Number, OnePass, Rates
    from segue.records import Notice


class Session:
    """Tracks the state of a training loop and counts its steps."""

    def __init__(self, host: Host | None) -> None:
        self._host = host or Bare()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    @property
    def is_active(self) -> bool:
        """Whether this is a segment of a run; outside a segment, every method only lets the script continue."""
        return self._host.is_active

    @property
    def step(self) -> int:
        """Steps done since the run began; not 0 after a resume."""
        return self._host.step

    @property
    def goal(self) -> int | None:
        """The step at which the run ends; None if the step is not known, and outside a segment."""
        return self._host.goal

    @property
    def config(self) -> dict[str, Any]:
        """The `[config]` of the run spec; if the run has files, `data` is the list of their paths on this machine.

        This is a copy: changes in it are not kept. Outside a segment, and in processes that a program starts, it is
        the content of the JSON file that the variable `SEGUE_CONFIG` names, or {} if the variable is not set.

        Raises:
            SessionError: `SEGUE_CONFIG` names no such file.
        """
        return copy.deepcopy(dict(self._host.config))

    @property
    def should_stop(self) -> bool:
        """Whether the next safe point is the last one; a long evaluation may be cut short in this case."""
        return self._host.should_stop

    def track(self, **objects: Any) -> None:
        """Make objects part of the run's state; after a resume, this call restores them.

        It takes objects with `state_dict` and `load_state_dict` (modules, optimizers, schedulers, scalers, loaders with
        a state, your own), dicts of plain values (restored in place), and random generators of torch, NumPy and
        `random`. The global random streams of these three libraries are always tracked. In a resumed run, all objects
        are restored once more before the first step, so changes that the script makes to them after this call are
        undone.

        Raises:
            SessionError: an object has no state that can be saved, a name is taken, or training has begun.
        """
        self._host.track(objects)

    def track_variables(self, namespace: dict[str, Any], *names: str) -> None:
        """Make variables part of the run's state: plain values and tensors that the loop carries to the next iteration.

        For a loop at the top level of a script: `run.track_variables(globals(), "best_loss", "x", "y")`. After a resume
        the variables are assigned before the first step. Variables of a function cannot be assigned from outside; use
        `run.carry` for them.

        Raises:
            SessionError: a name is taken, or training has begun.
        """
        self._host.track_variables(namespace, names)

    def carry(self, name: str, /, **values: Any) -> SimpleNamespace:
        """Values that the loop carries to its next iteration, as attributes of one object in the run's state.

        Write `sums = run.carry("sums", total=0.0, count=0)` before the loop, and `sums.total += loss.item()` in it. The
        values are numbers, strings, tensors, tuples and collections of these. After a resume they are restored before
        the first step. The same call in the next epoch begins again with the values that are passed to it.

        Raises:
            SessionError: a value cannot be saved, the name is taken, or the name is new after training has begun.
        """
        return self._host.carry(name, values)

    def steps(self, start: int | None = None, stop: int | None = None) -> Iterator[int]:
        """Yield those numbers of `range(start, stop)` whose steps the run has not made yet.

        The safe point is the top of an iteration: the run saves there, and ends there if the machine is about to be
        taken away. In the second case the program exits inside this call. Code after the loop runs only when the goal
        of the run or of the program is reached, whichever comes first.

        Raises:
            SessionError: a step reported nothing, the range is empty, or the checkpoint was made in another range.
        """
        return self._host.steps(None if start is None else _numbers(start, stop))

    def epochs(self, start: int, stop: int | None = None) -> Iterator[int]:
        """Yield those numbers of `range(start, stop)` whose epochs the run has not finished yet.

        The steps are the batches of `run.batches(loader)` inside the loop. After a resume in the middle of an epoch,
        the loop begins with that epoch, and the batches begin with the first unused one. Before that batch, all state
        is restored once more: code before the inner loop runs again, but has no effect on tracked objects.

        Raises:
            SessionError: an epoch had no batch of `run.batches`, a step reported nothing, the range is empty, or the
                checkpoint was made in another range.
        """
        return self._host.epochs(_numbers(start, stop))

    def batches(self, loader: Any) -> Batches:
        """The loader, with its position as part of the run's state; the loader's own order and length do not change.

        Inside `run.epochs`, each batch is a step, and its safe point is before the batch is drawn. With `run.steps`,
        call `run.batches` before the loop, and take batches by `next(batches)`, which begins a new pass at the end of
        each pass.

        A plain DataLoader's sampler draws the order of an interrupted pass again, from the random streams as they were
        at the beginning of the pass; samples of batches that were already used are not fetched. Worker processes get a
        seed for each batch, so that random transforms are the same after a resume. A loader or data set with
        `state_dict` (torchdata's StatefulDataLoader, or a data set without workers) restores its own position. A
        `range` counts as a loader of its numbers. A loader that is made again in each epoch replaces the previous one.

        Raises:
            SessionError: the loader has no position that could be resumed; the message names the remedies.
        """
        return Batches(loader, self._host.batches(loader))

    def enumerate(self, loader: Any, start: int = 0) -> Iterator[tuple[int, Any]]:
        """Like `enumerate(run.batches(loader), start)`, but the numbers of the batches stay correct after a resume.

        Raises what `run.batches` and `run.epochs` raise.
        """
        for number, batch in self.batches(loader).one_pass():
            yield start + number, batch

    def report(
        self,
        loss: Number,
        *,
        lr: Rates = None,
        grad_norm: Number | None = None,
        **metrics: Number,
    ) -> None:
        """Report the numbers of this step, once in each iteration; a resume must give the same numbers.

        If `lr` is not given, it is read from the tracked optimizers. If `grad_norm` is not given, it is measured at
        the optimizers' steps. Further numbers go to the loss curve only, under their names; a step may leave them out.
        """
        self._host.report(loss, lr=lr, grad_norm=grad_norm, metrics=metrics)

    def evaluating(self) -> AbstractContextManager[None]:
        """A block that evaluates: it leaves the random streams unchanged, and a long block is not taken for a hang.

        The random streams are also kept outside a segment, so that the script trains in the same way there.
        """
        return self._host.evaluating()

    def restore_folder(self, path: Path | str) -> Path | None:
        """Write the checkpoint folder of the newest commit to `path`; None in a new run, and outside a segment.

        Use it for frameworks that save and load a folder of their own. Call it before the loop, even in a new run. The
        state of the run is then the folder given to `commit_folder`, the global random streams, and all tracked
        objects. The bytes are verified, and files of this run in `path` are replaced.

        Raises:
            SessionError: the folder has files that do not belong to this run.
        """
        return self._host.restore_folder(Path(path))

    @property
    def should_save(self) -> bool:
        """Whether to write the folder at the end of this iteration and pass it to `commit_folder`."""
        return self._host.should_save

    def commit_folder(
        self,
        path: Path | str,
        *,
        instead: Mapping[str, bytes | Path] | None = None,
        best: Mapping[str, str] | None = None,
    ) -> None:
        """Commit this folder at the next safe point, as one atomic and fenced commit with a digest for each file.

        Call it at the end of an iteration in which `should_save` is true; the folder may be changed or deleted after
        the next iteration has begun. Without this call, the safe point saves nothing, and a requested stop comes one
        step later. `instead` gives the content to commit for some files, by their path in the folder: for example,
        content without times of day, because these would make every run different. The content is given as bytes, or
        as the path of a file elsewhere. Files that the folder does not have are added. `best` gives the committed file
        for each file of the best model that `segue checkpoints export --best` writes: `{"model.pt": "best/model.pt"}`.

        Raises:
            SessionError: there is no such folder, or `restore_folder` was not called before the loop.
        """
        self._host.commit_folder(Path(path), instead=instead or {}, best=best)

    def measure(self, **objects: Any) -> None:
        """Measure the norms and learning rates of modules and optimizers whose state is in a folder."""
        self._host.measure(objects)

    def on_notice(self, function: Callable[[Notice], None]) -> None:
        """Call this function with each notice, before the last save, in a thread and for a few seconds at most.

        It works like `on_notice` of a recipe (docs/recipes.md). If the script runs bare, the function is never called.

        Raises:
            SessionError: training has begun.
        """
        self._host.call_on_notice(function)

    def save_best(self, metric: float) -> None:
        """Save at the next safe point and record this metric with the checkpoint; retention keeps the best checkpoint.

        The metric belongs to the weights at that safe point, so training waits there until the previous save is
        written.
        """
        self._host.save_best(metric)

    @property
    def has_ended_early(self) -> bool:
        """Whether `finish` ended the training in an earlier attempt that was lost in the code after the loop.

        In that case no step is left: the loops of a session yield nothing, and the loop of a framework has to check
        this property.
        """
        return self._host.has_ended_early

    def require_restored(self, step: int, *, call: str) -> None:
        """Raise an error if a framework's trainer begins at step 0 although the run has made steps.

        Raises:
            SessionError: the trainer begins at step 0; the message names the `call` that loads its checkpoint.
        """
        if self._host.is_active and step == 0 < self._host.step:
            what = f"the run has made {self._host.step} steps, and the Trainer begins at step 0."
            raise SessionError(what=what, fix=f"load its checkpoint: `{call}`.")

    def finish(self, reason: str) -> None:
        """End the run at the next safe point, before its goal; code after the loop runs. `reason` is for people."""
        self._host.finish(reason)


class Batches:
    """A loader with its position as part of a run's state; it has all other attributes of the user's loader."""

    def __init__(self, loader: Any, one_pass: OnePass) -> None:
        self._loader, self.one_pass = loader, one_pass
        self._current: Iterator[tuple[int, Any]] | None = None

    def __iter__(self) -> Iterator[Any]:
        return (batch for _, batch in self.one_pass())

    def __next__(self) -> Any:
        for _ in range(2):
            if self._current is None:
                self._current = self.one_pass()
            for _, batch in self._current:
                return batch
            self._current = None
        raise StopIteration

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _numbers(start: int, stop: int | None) -> range:
    return range(start) if stop is None else range(start, stop)
