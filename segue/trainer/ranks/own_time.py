"""The own time of a rank in a step: the time for which the rank works by itself, without waiting for other ranks.

With several ranks, whole steps take the same time on each rank, because the ranks wait for each other. Own time begins
when the rank asks for its batch, and ends when its gradients are complete, before it waits for the gradients of the
other ranks. Exchanges of buffers (as of BatchNorm) before a forward pass do not count.
"""

from __future__ import annotations

from collections import deque

import torch
from torch.autograd import Variable

from segue.clock import Clock

_Mark = float | torch.cuda.Event


class OwnTime:
    """Measures the own time of this rank in each step. On an accelerator it records events, and never waits for
    them."""

    def __init__(self, device: torch.device, *, clock: Clock) -> None:
        self._device, self._clock = device, clock
        self._steps: deque[list[tuple[_Mark, _Mark]]] = deque(maxlen=2)
        """The measured parts of the newest steps."""
        self._begun: _Mark | None = None

    def begin(self) -> None:
        """Begin the own time of a step."""
        self._steps.append([])
        self.resume()

    def resume(self) -> None:
        """Measure again, after a wait for other ranks."""
        self._begun = self._mark()

    def pause(self) -> None:
        """Stop to measure, before a wait for other ranks."""
        if self._begun is not None and self._steps:
            self._steps[-1].append((self._begun, self._mark()))
        self._begun = None

    def pause_after_backward(self, loss: torch.Tensor) -> None:
        """Stop to measure when the backward pass of this loss has computed all gradients of this rank.

        The engine calls queued functions in their order, and DistributedDataParallel queues its wait later than this.
        """
        queue = Variable._execution_engine.queue_callback
        loss.register_hook(lambda _: queue(self.pause))  # type: ignore[no-untyped-call]

    def take(self) -> tuple[float, ...]:
        """Return the seconds of the oldest step that was not taken yet; empty if there is none, or if an accelerator
        still works on it."""
        if not self._steps or not self._steps[0]:
            return ()
        last = self._steps[0][-1][1]
        if not isinstance(last, float) and not last.query():  # type: ignore[no-untyped-call]
            return ()
        return (sum(_seconds(*part) for part in self._steps.popleft()),)

    def _mark(self) -> _Mark:
        if self._device.type != "cuda":
            return self._clock.monotonic()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


def _seconds(begin: _Mark, end: _Mark) -> float:
    if isinstance(begin, float) or isinstance(end, float):
        return float(end) - float(begin)  # type: ignore[arg-type]
    return float(begin.elapsed_time(end)) / 1000
