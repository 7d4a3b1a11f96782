"""The own time of a rank in a step: the time for which the rank works by itself, without waiting for other ranks.

With several ranks, whole steps take the same time on each rank, because the ranks wait for each other. Own time begins
when the rank asks for its batch, and ends when its gradients are complete, before it waits for the gradients of the
other ranks. Own time does not include exchanges of buffers (for example those of BatchNorm) before a forward pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import nn
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from segue.clock import Clock

_Mark = float | torch.cuda.Event


class OwnTime:
    """Measures the own time of this rank in each step. On an accelerator, the object records events, and never waits
    for them."""

    def __init__(self, device: torch.device, *, clock: Clock) -> None:
        self._device = device
        self._mark: Callable[[], _Mark] = clock.monotonic if device.type != "cuda" else self._event
        self._steps: deque[list[tuple[_Mark, _Mark]]] = deque(maxlen=2)
        """The measured parts of the newest steps."""
        self._begun: _Mark | None = None
        self._handles: list[RemovableHandle] = []

    def begin(self) -> None:
        """Begin the own time of a step."""
        self._steps.append([])
        self._begun = self._mark()

    def resume(self) -> None:
        """Start measuring again after a wait for other ranks."""
        self._begun = self._mark()

    def pause(self) -> None:
        """Stop measuring before a wait for other ranks."""
        if self._begun is not None and self._steps:
            self._steps[-1].append((self._begun, self._mark()))
        self._begun = None

    def follow(self, model: nn.Module) -> None:
        """Stop measuring whenever a backward pass has computed all gradients of this model on this rank.

        After the last gradient, torch's autograd engine calls the queued functions in the order of the queue.
        DistributedDataParallel queues its wait for the other ranks when all gradients are complete, after the calls of
        all parameters' hooks. The hook of the last parameter is usually the first to be called.
        """
        for handle in self._handles:
            handle.remove()
        queue = Variable._execution_engine.queue_callback
        last = [parameter for parameter in model.parameters() if parameter.requires_grad][-1:]
        self._handles = [
            each.register_post_accumulate_grad_hook(lambda _: queue(self.pause))  # type: ignore[no-untyped-call]
            for each in last
        ]

    def take(self) -> float:
        """Return the own time, in seconds, of the oldest step whose own time was not returned yet. The result is 0 if
        all own times were returned, or if an accelerator still computes the step."""
        if not self._steps or not self._steps[0]:
            return 0.0
        last = self._steps[0][-1][1]
        if not isinstance(last, float) and not last.query():  # type: ignore[no-untyped-call]
            return 0.0
        return sum(_seconds(*part) for part in self._steps.popleft())

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


def _seconds(begin: _Mark, end: _Mark) -> float:
    if isinstance(begin, float) or isinstance(end, float):
        return float(end) - float(begin)  # type: ignore[arg-type]
    return float(begin.elapsed_time(end)) / 1000
