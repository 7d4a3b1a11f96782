"""A training loop of the user's own: `segue.session()` gives it what a recipe gets from segue's loop.

Outside a segment a session changes nothing and writes nothing: the script runs as if segue were not there.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from segue.errors import ProgramError, SessionError
from segue.recipe import current_folder_first

if TYPE_CHECKING:
    import torch

    from segue.records import Notice

    OnePass = Callable[[], Iterator[tuple[int, Any]]]
    Number = float | torch.Tensor
    Rates = Number | Sequence[Number] | None


class Host(Protocol):
    """The attempt that a session belongs to."""

    @property
    def step(self) -> int:
        """Steps that the run has made."""
        ...

    @property
    def goal(self) -> int:
        """The step at which the run ends, as far as it is known."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """What the run passes to the program."""
        ...

    @property
    def should_stop(self) -> bool:
        """Whether the attempt would end at the next safe point."""
        ...

    @property
    def should_save(self) -> bool:
        """Whether the run would save or end at the next safe point."""
        ...

    def measure(self, objects: Mapping[str, Any]) -> None:
        """Measure these objects without saving them."""
        ...

    def restore_folder(self, path: Path) -> Path | None:
        """Write the committed folder there."""
        ...

    def commit_folder(self, path: Path, *, instead: Mapping[str, bytes | Path], best: Mapping[str, str] | None) -> None:
        """The folder is the run's state at the next safe point, with these files in place of those of their names."""
        ...

    def track(self, objects: Mapping[str, Any]) -> None:
        """Make these objects part of the run's state, and restore them if the run has a checkpoint."""
        ...

    def track_variables(self, namespace: dict[str, Any], names: tuple[str, ...]) -> None:
        """Make these variables part of the run's state."""
        ...

    def carry(self, name: str, values: Mapping[str, Any]) -> SimpleNamespace:
        """Make these values part of the run's state under a name of their own, or begin again with them."""
        ...

    def batches(self, loader: Any) -> OnePass:
        """A function that makes one pass over the loader, or what is left of one: numbered batches."""
        ...

    def steps(self, numbers: range | None) -> Iterator[int]:
        """Those of the numbers that are left."""
        ...

    def epochs(self, numbers: range) -> Iterator[int]:
        """Those of the numbers that are left."""
        ...

    def report(self, loss: Number, *, lr: Rates, grad_norm: Number | None, metrics: Mapping[str, Number]) -> None:
        """What the current step looked like."""
        ...

    def evaluating(self) -> AbstractContextManager[None]:
        """A block that makes no step and leaves the random streams as they were."""
        ...

    def call_on_notice(self, function: Callable[[Notice], None]) -> None:
        """Call this when the machine is about to be taken away."""
        ...

    def save_best(self, metric: float) -> None:
        """Save at the next safe point, with this metric."""
        ...

    @property
    def has_ended_early(self) -> bool:
        """Whether the newest commit is that of a training that `finish` ended: no step is left."""
        ...

    def finish(self, reason: str) -> None:
        """End the run at the next safe point."""
        ...


_hosts: list[Host] = []
"""The attempt in this process; one at most."""

_refused: list[str] = []
"""Why no program may train in this process; none where it may."""


@contextmanager
def hosted(host: Host) -> Iterator[None]:
    """A block in which sessions belong to this attempt."""
    _hosts.append(host)
    try:
        yield
    finally:
        _hosts.remove(host)


@contextmanager
def without_training(why: str) -> Iterator[None]:
    """A block in which a training loop raises, for a process that only imports a program's functions."""
    _refused.append(why)
    try:
        yield
    finally:
        _refused.remove(why)


def require_training_here() -> None:
    """Refuse to train in a process that may not.

    Raises:
        SessionError: names why, and how a script is imported without its loop.
    """
    if _refused:
        fix = 'put the loop into `if __name__ == "__main__":`, or what is imported into another module.'
        raise SessionError(what=f"{_refused[-1]}.", fix=fix)


def require_program(command: Sequence[str]) -> None:
    """Check that there is what a program's command names, as seen from the current folder, without running it.

    Raises:
        ProgramError: there is no such script or module, or the script is not Python.
    """
    if command[1] == "-m":
        with current_folder_first():
            try:
                found = importlib.util.find_spec(command[2])
            except ModuleNotFoundError:
                found = None
        if found is None:
            why = f"there is no module {command[2]!r}."
            raise ProgramError(command=command, why=why, fix="check its name and the current folder.")
        return
    script = Path(command[1])
    try:
        compile(script.read_bytes(), script, "exec")
    except OSError as error:
        why = f"{script} cannot be read ({error.strerror})."
        raise ProgramError(
            command=command, why=why, fix="check the path; it is relative to the current folder."
        ) from None
    except (SyntaxError, ValueError) as error:
        raise ProgramError(command=command, why=f"{script} is not Python ({error}).", fix="correct it.") from None


def host_here() -> Host | None:
    """The attempt that sessions of this process belong to; None outside of one."""
    return _hosts[0] if _hosts else None


class Session:
    """Tracks the state of a training loop and counts its steps."""

    def __init__(self, host: Host | None) -> None:
        self._host = host
        self._done, self._counts_batches = 0, True
        self._finish_reason: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    @property
    def is_active(self) -> bool:
        """Whether this is a segment of a run; outside one, every method only lets the script go on."""
        return self._host is not None

    @property
    def step(self) -> int:
        """Steps done since the run began; after a resume not 0."""
        return self._host.step if self._host is not None else self._done

    @property
    def goal(self) -> int | None:
        """The step at which the run ends, as far as it is known; None outside a segment."""
        return self._host.goal if self._host is not None else None

    @property
    def config(self) -> dict[str, Any]:
        """The `[config]` of the run spec; with files, also `data`, the list of their paths on this machine.

        A copy: what is changed in it is not kept. Outside a segment it is that of the JSON file which `SEGUE_CONFIG`
        names, as in the processes that a program starts; {} without this variable.

        Raises:
            SessionError: `SEGUE_CONFIG` names no such file.
        """
        if self._host is not None:
            return copy.deepcopy(dict(self._host.config))
        from segue.data.config import config_of_environment

        return config_of_environment()

    @property
    def should_stop(self) -> bool:
        """Whether the next safe point is the last one: a long evaluation may be cut short then."""
        return self._host.should_stop if self._host is not None else self._finish_reason is not None

    def track(self, **objects: Any) -> None:
        """Make objects part of the run's state; after a resume they are restored when this returns.

        Objects with `state_dict` and `load_state_dict` (modules, optimizers, schedulers, scalers, loaders with a state,
        your own), dicts of plain values (restored in place), and random generators of torch, NumPy and `random`. The
        global random streams of these three are tracked without a name. Before the first step everything is restored
        again: what the script does to these objects after this call is undone where a run is resumed.

        Raises:
            SessionError: an object has no state that can be saved, a name is taken, or training has begun.
        """
        if self._host is not None:
            self._host.track(objects)

    def track_variables(self, namespace: dict[str, Any], *names: str) -> None:
        """Make variables part of the run's state: plain values and tensors that the loop carries to the next iteration.

        For a loop at the top level of a script: `run.track_variables(globals(), "best_loss", "x", "y")`. After a resume
        they are assigned before the first step. Variables of a function cannot be assigned from outside: `run.carry`.

        Raises:
            SessionError: a name is taken, or training has begun.
        """
        if self._host is not None:
            self._host.track_variables(namespace, names)

    def carry(self, name: str, /, **values: Any) -> SimpleNamespace:
        """Values that the loop carries to its next iteration, as attributes: part of the run's state under this name.

        `sums = run.carry("sums", total=0.0, count=0)` before the loop, and `sums.total += loss.item()` in it. Numbers,
        strings, tensors, tuples and collections of them. After a resume they are restored before the first step. The
        same call in the next epoch begins again with the values that it is given.

        Raises:
            SessionError: a value cannot be saved, the name is taken, or it is new and training has begun.
        """
        return self._host.carry(name, values) if self._host is not None else SimpleNamespace(**values)

    def steps(self, start: int | None = None, stop: int | None = None) -> Iterator[int]:
        """Yield the number of each step that is left, of those that `range` would give for the same arguments.

        The safe point is the top of an iteration: there the run is saved, and there it ends when the machine is taken
        away. The program then ends inside this call, and code after the loop runs only when the goal is reached: the
        goal of the run or that of the program, whichever comes first.

        Raises:
            SessionError: a step reported nothing, there is no number, or the checkpoint was made in another range.
        """
        if self._host is not None:
            yield from self._host.steps(None if start is None else _numbers(start, stop))
            return
        require_training_here()
        if start is None:
            raise SessionError(what="run.steps() has no goal outside a segment.", fix="give it one: run.steps(1000).")
        self._counts_batches = False
        for number in _numbers(start, stop):
            if self._finish_reason is not None:
                break
            yield number
            self._done += 1

    def epochs(self, start: int, stop: int | None = None) -> Iterator[int]:
        """Yield the number of each epoch that is left, of those that `range` would give for the same arguments.

        The steps are the batches that `run.batches(loader)` gives inside. After a resume in the middle of an epoch the
        loop begins with that epoch, and its batches with the first that is left; everything is restored once more
        before that batch, so code before the inner loop runs again without an effect on what is tracked.

        Raises:
            SessionError: an epoch had no batch of `run.batches`, a step reported nothing, there is no number, or the
                checkpoint was made in another range.
        """
        if self._host is not None:
            yield from self._host.epochs(_numbers(start, stop))
            return
        require_training_here()
        for number in _numbers(start, stop):
            if self._finish_reason is not None:
                break
            yield number

    def batches(self, loader: Any) -> Batches:
        """The loader with its position as part of the run's state; its own order and its length do not change.

        Inside `run.epochs` each batch is a step, with the safe point before it is drawn. With `run.steps`, call it
        before the loop, and take batches by `next(batches)`, which begins another pass where one ends.

        A plain DataLoader's sampler draws the order of an interrupted pass again, from the random streams as they were
        when the pass began, and the samples of the batches that were used are not fetched. Worker processes get a seed
        for each batch, so that random transforms are the same after a resume. Anything with `state_dict` (torchdata's
        StatefulDataLoader, a data set without workers) goes on by itself. A `range` is a loader of its numbers. What is
        made again in each epoch takes the place of the one before it.

        Raises:
            SessionError: the loader has no position that could be resumed; names the ways out.
        """
        return Batches(loader, self._host.batches(loader) if self._host is not None else self._one_pass_of(loader))

    def enumerate(self, loader: Any, start: int = 0) -> Iterator[tuple[int, Any]]:
        """`enumerate(run.batches(loader), start)` for code that uses the number of a batch: it is right after a resume.

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
        """Report what this step looked like, once in each iteration: a resume must give the same numbers.

        `lr` is read from the tracked optimizers, and `grad_norm` measured at their steps, unless they are given.
        Further numbers go to the loss curve only, under their names; a step may leave them out.
        """
        if self._host is not None:
            self._host.report(loss, lr=lr, grad_norm=grad_norm, metrics=metrics)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """A block that evaluates: afterwards the random streams are as before, and a long one is not taken for a hang.

        The streams are kept outside a segment too, so that the script trains the same there.
        """
        if self._host is not None:
            with self._host.evaluating():
                yield
            return
        from segue.data.streams import streams_kept

        with streams_kept():
            yield

    def restore_folder(self, path: Path | str) -> Path | None:
        """Write the checkpoint folder of the newest commit to `path`; None in a new run, and outside a segment.

        For a framework that saves and loads a folder of its own. Call it before the loop, in a new run too: the state
        of such a run is what `commit_folder` hands over, the global random streams, and what is tracked besides. The
        bytes are verified; files of this run that `path` holds are replaced.

        Raises:
            SessionError: the folder has files that are not of this run.
        """
        return self._host.restore_folder(Path(path)) if self._host is not None else None

    @property
    def should_save(self) -> bool:
        """Whether to write the folder at the end of this iteration, and hand it over by `commit_folder`."""
        return self._host is not None and self._host.should_save

    def commit_folder(
        self,
        path: Path | str,
        *,
        instead: Mapping[str, bytes | Path] | None = None,
        best: Mapping[str, str] | None = None,
    ) -> None:
        """Commit this folder at the next safe point: atomically, each file with its digest, fenced, kept by retention.

        Call it at the end of an iteration in which `should_save` is true; the folder may change or go after the next
        iteration has begun. Where it was not called, that safe point saves nothing, and a stop waits for one step.
        `instead` has content for files that are to be committed otherwise than they are there, by their path in the
        folder: without the times of day in them, for example, by which no two runs would be identical. A path is that
        of a file elsewhere. Names that the folder does not have are added.
        `best` names the committed files that are the best model so far, by the names that
        `segue checkpoints export --best` gives them: `{"model.pt": "best/model.pt"}`.

        Raises:
            SessionError: there is no such folder, or `restore_folder` was not called before the loop.
        """
        if self._host is not None:
            self._host.commit_folder(Path(path), instead=instead or {}, best=best)

    def measure(self, **objects: Any) -> None:
        """Measure the norms and learning rates of modules and optimizers whose state is in a folder."""
        if self._host is not None:
            self._host.measure(objects)

    def on_notice(self, function: Callable[[Notice], None]) -> None:
        """Have this called with each notice, in a thread and for a few seconds at most, before the last save is made.

        As `on_notice` of a recipe: docs/recipes.md. Never called where the script runs bare.

        Raises:
            SessionError: training has begun.
        """
        if self._host is not None:
            self._host.call_on_notice(function)

    def save_best(self, metric: float) -> None:
        """Save at the next safe point and note this metric there: retention keeps the best checkpoint.

        The metric is of the weights at that safe point, so training waits there if the save before is being written.
        """
        if self._host is not None:
            self._host.save_best(metric)

    @property
    def has_ended_early(self) -> bool:
        """Whether `finish` ended the training in an attempt before, which was lost in what follows the loop.

        No step is left: the loops of a session make none. A framework's loop has to be told.
        """
        return self._host is not None and self._host.has_ended_early

    def require_restored(self, step: int, *, call: str) -> None:
        """Refuse a framework's trainer that begins again, at this step, in a run that has made steps.

        Raises:
            SessionError: says with which `call` it loads its checkpoint.
        """
        if self._host is not None and step == 0 < self._host.step:
            what = f"the run has made {self._host.step} steps, and the Trainer begins at step 0."
            raise SessionError(what=what, fix=f"load its checkpoint: `{call}`.")

    def finish(self, reason: str) -> None:
        """End the run at the next safe point, before its goal; what follows the loop runs. `reason` is for a person."""
        self._finish_reason = reason
        if self._host is not None:
            self._host.finish(reason)

    def _one_pass_of(self, loader: Any) -> OnePass:
        def one_pass() -> Iterator[tuple[int, Any]]:
            for numbered in enumerate(loader):
                if self._finish_reason is not None:
                    return
                yield numbered
                self._done += self._counts_batches

        return one_pass


class Batches:
    """A loader whose position is part of a run's state. Everything else is the loader's own."""

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
