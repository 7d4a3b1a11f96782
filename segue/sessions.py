"""`segue.session()` gives a user's own training loop the features that segue's loop gives to recipes.

Outside a segment, a session changes nothing and writes nothing.
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
        """Whether this script runs as a segment of a run. Outside a segment, a session does not change the script."""
        return self._host.is_active

    @property
    def step(self) -> int:
        """Number of steps since the run began. After a resume, this number is not 0."""
        return self._host.step

    @property
    def goal(self) -> int | None:
        """The step at which the run ends.

        Outside a segment, or if this step is unknown, the value is None.
        """
        return self._host.goal

    @property
    def config(self) -> dict[str, Any]:
        """The `[config]` of the run spec. If the run has files, `data` is the list of their paths on this machine.

        The property returns a copy, so changes in the copy are not kept. Outside a segment, and in processes that a
        program starts, the value is the content of the JSON file that the environment variable `SEGUE_CONFIG` names. If
        this variable is not set, the value is {}.

        Raises:
            SessionError: the file that `SEGUE_CONFIG` names cannot be read, or does not contain a JSON object.
        """
        return copy.deepcopy(dict(self._host.config))

    @property
    def should_stop(self) -> bool:
        """Whether the attempt ends at the next safe point. If the attempt ends, the script may shorten a long
        evaluation."""
        return self._host.should_stop

    def track(self, **objects: Any) -> None:
        """Make objects part of the run's state. After a resume, this call restores the objects.

        There are three kinds of objects: objects with `state_dict` and `load_state_dict` (modules, optimizers,
        schedulers, scalers, stateful loaders, or objects of your own classes), dicts of plain values (restored in
        place), and random generators of torch, NumPy and `random`. The global random streams of torch, NumPy and
        `random` are always tracked. A resumed run restores all objects once more before the first step. This restore
        undoes every change that the script makes to a tracked object between `track` and the first step.

        Raises:
            SessionError: an object has no state that can be saved, a name is taken, or training has begun.
        """
        self._host.track(objects)

    def track_variables(self, namespace: dict[str, Any], *names: str) -> None:
        """Make variables part of the run's state: plain values and tensors that the loop carries to the next iteration.

        In a loop at the top level of a script, write `run.track_variables(globals(), "best_loss", "x", "y")`. After a
        resume, segue assigns the variables before the first step. segue cannot assign the local variables of a
        function. For local variables, use `run.carry`.

        Raises:
            SessionError: a name is taken, or training has begun.
        """
        self._host.track_variables(namespace, names)

    def carry(self, name: str, /, **values: Any) -> SimpleNamespace:
        """Return one object whose attributes are the values that the loop carries to its next iteration.

        The object is part of the run's state.

        Write `sums = run.carry("sums", total=0.0, count=0)` before the loop, and `sums.total += loss.item()` inside the
        loop. The values are numbers, strings, tensors, tuples, and collections of these types. After a resume, segue
        restores the values before the first step. If the script calls `carry` again in the next epoch, the values begin
        again with the arguments of this call.

        Raises:
            SessionError: a value cannot be saved, the name is taken, or the name is new after training has begun.
        """
        return self._host.carry(name, values)

    def steps(self, start: int | None = None, stop: int | None = None) -> Iterator[int]:
        """Yield the numbers of `range(start, stop)` whose steps the run has not made yet.

        The top of each iteration is the safe point, at which the run saves. If the provider takes the machine back, the
        run also ends at a safe point, and the program exits inside this call. Code after the loop runs only after the
        goal of the run or of the program, whichever comes first.

        Raises:
            SessionError: a step reported nothing, the range is empty, or the checkpoint was made in another range.
        """
        return self._host.steps(None if start is None else _numbers(start, stop))

    def epochs(self, start: int, stop: int | None = None) -> Iterator[int]:
        """Yield the numbers of `range(start, stop)` whose epochs the run has not finished yet.

        Each batch of `run.batches(loader)` inside the loop is one step. After a resume within an epoch, the loop begins
        with this epoch, and the batches begin with the first unused batch. Before the first unused batch, segue
        restores all state once more. Therefore code before the inner loop runs again after a resume, but has no effect
        on tracked objects.

        Raises:
            SessionError: an epoch had no batch of `run.batches`, a step reported nothing, the range is empty, or the
                checkpoint was made in another range.
        """
        return self._host.epochs(_numbers(start, stop))

    def batches(self, loader: Any) -> Batches:
        """Return the loader, with its position as part of the run's state.

        The order and the length of the loader do not change.

        Inside `run.epochs`, each batch is one step, with its safe point before the batch is drawn. With `run.steps`,
        call `run.batches` before the loop and take each batch by `next(batches)`. At the end of a pass over the data,
        `next` begins a new pass.

        After a resume, the sampler of a plain DataLoader draws the order of the interrupted pass again, from the random
        streams as they were at the beginning of the pass. segue does not fetch samples of used batches again. Worker
        processes get a seed for each batch, so random transforms do not change after a resume. A loader or data set
        with `state_dict` (torchdata's StatefulDataLoader, or a data set without workers) restores its own position. A
        `range` is treated as a loader of its numbers. If the script makes a new loader in each epoch, it replaces the
        previous loader.

        Raises:
            SessionError: segue cannot resume a position of the loader. The message names the fixes.
        """
        return Batches(loader, self._host.batches(loader))

    def enumerate(self, loader: Any, start: int = 0) -> Iterator[tuple[int, Any]]:
        """Yield like `enumerate(run.batches(loader), start)`, but with correct batch numbers after a resume.

        Raises the errors of `run.batches` and `run.epochs`.
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
        """Report the numbers of this step.

        Call this method once in each iteration. A resume must reproduce these numbers.

        If `lr` is not given, segue reads the learning rate from the tracked optimizers. If `grad_norm` is not given,
        segue measures the gradient norm when the optimizers step. All other numbers only appear in the loss curve,
        under their names. A step may omit them.
        """
        self._host.report(loss, lr=lr, grad_norm=grad_norm, metrics=metrics)

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a block for an evaluation, which leaves the random streams unchanged.

        A long block does not count as a hang. Outside a segment, the block also leaves the random streams unchanged, so
        that a run does not change the results of the script.
        """
        return self._host.evaluating()

    def restore_folder(self, path: Path | str) -> Path | None:
        """Write the checkpoint folder of the newest commit to `path`. In a new run, or outside a segment, return None.

        Use this method for frameworks that save and load their own folder. Call it before the loop, even in a new run.
        After this call, the state of the run is the folder given to `commit_folder`, the global random streams, and all
        tracked objects. The call verifies the bytes of the checkpoint, and replaces files of this run in `path`.

        Raises:
            SessionError: the folder `path` contains files that do not belong to this run.
        """
        return self._host.restore_folder(Path(path))

    @property
    def should_save(self) -> bool:
        """Whether the script must pass a new checkpoint folder to `commit_folder` at the end of this iteration."""
        return self._host.should_save

    def commit_folder(
        self,
        path: Path | str,
        *,
        instead: Mapping[str, bytes | Path] | None = None,
        best: Mapping[str, str] | None = None,
    ) -> None:
        """Commit this folder at the next safe point. The commit is atomic and fenced, and has a digest for each file.

        Call this method at the end of an iteration in which `should_save` is true. After the next iteration has begun,
        the script may change or delete the folder. If the script does not call `commit_folder`, the safe point saves
        nothing, and a requested stop comes one step later. `instead` maps paths in the folder to other content to
        commit, as bytes or as the path of another file. Use it, for example, to omit times of day, which differ in
        every run. `instead` may also add files that the folder does not have. `best` maps each file of
        the best model to the committed file with its content, for `segue checkpoints export --best`. Example:
        `{"model.pt": "best/model.pt"}`.

        Raises:
            SessionError: the folder does not exist, or `restore_folder` was not called before the loop.
        """
        self._host.commit_folder(Path(path), instead=instead or {}, best=best)

    def measure(self, **objects: Any) -> None:
        """Measure the norms and learning rates of modules and optimizers whose state is in a committed folder."""
        self._host.measure(objects)

    def on_notice(self, function: Callable[[Notice], None]) -> None:
        """Register a function that segue calls with each notice, before the last save.

        The function runs in a separate thread for at most a few seconds, like `on_notice` of a recipe
        (docs/recipes.md). Outside a segment, segue never calls the function.

        Raises:
            SessionError: training has begun.
        """
        self._host.call_on_notice(function)

    def save_best(self, metric: float) -> None:
        """Save at the next safe point, and record this metric with the checkpoint.

        Retention keeps the checkpoint with the best metric. Because the metric belongs to the weights at this safe
        point, training waits there until the previous save is written.
        """
        self._host.save_best(metric)

    @property
    def has_ended_early(self) -> bool:
        """Whether an earlier attempt ended the training by `finish` and was then lost in the code after the loop.

        In this case no step is left. The loops of a session then yield nothing. The loop of a framework must read this
        property itself.
        """
        return self._host.has_ended_early

    def require_restored(self, step: int, *, call: str) -> None:
        """If a framework's trainer begins at step 0 although the run has made steps, raise an error.

        Raises:
            SessionError: the trainer begins at step 0. The message names the `call` that loads the trainer's
                checkpoint.
        """
        if self._host.is_active and step == 0 < self._host.step:
            what = f"the run has made {self._host.step} steps, and the Trainer begins at step 0."
            raise SessionError(what=what, fix=f"load its checkpoint: `{call}`.")

    def finish(self, reason: str) -> None:
        """End the run at the next safe point, before the run reaches its goal.

        Code after the loop still runs. `reason` is a text that reports show.
        """
        self._host.finish(reason)


class Batches:
    """Wraps a loader, and makes its position part of a run's state.

    The wrapper also has all attributes of the loader.
    """

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
