"""The current activity of the trainer, the start of this activity, and the time after which the trainer counts as
hung."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

from segue.clock import Clock
from segue.spec import RunSpec

Kind = Literal["starting", "training", "evaluating", "waiting", "ending", "leaving"]
Phase = Literal["build", "restore", "first step", "replay", "step", "evaluate", "save", "rehearsal", "end"]
"""The activity of an attempt, as recorded in its notices."""
_ENOUGH_STEPS = 3
"""Number of steps before the usual step time is known. The first steps are slower, because they compile and allocate
memory."""


class Mark(NamedTuple):
    """The newest sign of progress. If the mark changes, the trainer is not hung."""

    kind: Kind
    number: int
    step: int


class StepTime:
    """Mean time from one step to the next, without pauses between steps."""

    def __init__(self) -> None:
        self._done, self._seconds = 0, 0.0
        self._last_at: float | None = None

    def step_done(self, at: float) -> None:
        if self._last_at is not None:
            self._done += 1
            self._seconds += at - self._last_at
        self._last_at = at

    def pause(self, *, until: float | None = None) -> None:
        """Do not count the time until `until` as part of a step. If `until` is None, do not count the time until the
        end of the next step."""
        self._last_at = until if self._last_at is not None else None

    @property
    def usual_seconds(self) -> float | None:
        """Mean seconds of a step; None during the first few steps."""
        return self._seconds / self._done if self._done >= _ENOUGH_STEPS else None


class Activity:
    """The trainer's progress. The training thread writes the progress, and other threads read it.

    The watchdog may end the attempt while the training thread runs code that may never return. If the watchdog ends the
    attempt, the training thread stops at its next sign of progress.
    """

    def __init__(self, clock: Clock, *, begun_at: float | None = None) -> None:
        """`begun_at` is the time on the monotonic clock at which the first phase began. None means now."""
        self._clock = clock
        began = clock.monotonic() if begun_at is None else begun_at
        self._now_in: tuple[Phase, float, dict[Phase, float]] = ("build", began, {})
        """The phase, its start, and the seconds in earlier phases, in one tuple for the heartbeat thread."""
        self._steps = StepTime()
        self.longest_evaluation_seconds: float | None = None
        self.mark = Mark("starting", 0, 0)
        self.is_reported = False
        """Whether the attempt's report is in the run's log."""
        self.makes_last_step = False
        """Whether an ending attempt makes one more step, which may take no longer than the earlier steps."""
        self._trains = threading.get_ident()
        self._taking = threading.Lock()
        self._is_taken = False

    @property
    def phase(self) -> Phase:
        return self._now_in[0]

    @phase.setter
    def phase(self, phase: Phase) -> None:
        now = self._clock.monotonic()
        self._now_in = (phase, now, self._seconds_until(now))

    def phase_seconds(self) -> dict[str, float]:
        """Return the seconds that the attempt has spent in each phase so far."""
        return {phase: round(seconds, 3) for phase, seconds in self._seconds_until(self._clock.monotonic()).items()}

    def _seconds_until(self, now: float) -> dict[Phase, float]:
        phase, begun_at, before = self._now_in
        return before | {phase: before.get(phase, 0.0) + now - begun_at}

    def take_over(self, seen: Mark) -> bool:
        """Take over the end of the attempt in this thread. Return False if the training thread has made progress since
        `seen`."""
        with self._taking:
            self._is_taken = self.mark == seen
            return self._is_taken

    def keep_out(self) -> None:
        """If another thread is ending the attempt and this process, block the training thread for ever."""
        if self._is_taken and threading.get_ident() == self._trains:
            threading.Event().wait()

    def step_done(self, step: int, *, at: float) -> None:
        """Record the end of a step at this time of the monotonic clock."""
        self._steps.step_done(at)
        kind, number, _ = self.mark
        # A step after the last save does not set the phase back to training.
        self._mark(Mark("ending" if kind == "ending" else "training", number + 1, step))

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """A `with` block in which the user's metric is computed."""
        began, before, phase = self._clock.monotonic(), self.mark.kind, self.phase
        self._set("evaluating")
        self.phase = "evaluate"
        try:
            yield
        finally:
            self.keep_out()
            self.phase = phase
            now = self._clock.monotonic()
            self.longest_evaluation_seconds = max(self.longest_evaluation_seconds or 0.0, now - began)
            self._steps.pause(until=now)
            self._set(before)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """A `with` block in which the state is captured."""
        phase, self.phase = self.phase, "save"
        try:
            yield
        finally:
            self.phase = phase

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A `with` block that waits for another process, which builds the recipe."""
        before = self.mark.kind
        self._set("waiting")
        try:
            yield
        finally:
            self._steps.pause()
            self._set(before)

    def goes_on(self) -> None:
        """Record that the process for which this trainer waits is still at work."""
        self._set(self.mark.kind)

    def ending(self) -> None:
        """Record that only the last checkpoint and the report are left."""
        self.phase = "end"
        self._set("ending")

    @contextmanager
    def last_step(self) -> Iterator[None]:
        """A `with` block in which an ending attempt makes a step."""
        self.makes_last_step = True
        try:
            yield
        finally:
            self.keep_out()
            self.makes_last_step = False

    def leaving(self) -> None:
        """Record that all steps are committed, and that the program runs the code after its loop."""
        self.phase = "end"
        self._set("leaving")

    @property
    def usual_step_seconds(self) -> float | None:
        """Mean seconds from one step to the next; None during the first few steps."""
        return self._steps.usual_seconds

    def limit_seconds(self, spec: RunSpec, *, ranks: int) -> float:
        """Seconds without any progress after which the trainer counts as hung."""
        live = spec.liveness
        # If a rank waits for another rank, it ends by itself, and its report names the other rank.
        least = max(live.hang_seconds, live.rank_seconds + live.hang_seconds if ranks > 1 else 0.0)
        # Ranks also wait this long for each other's first step.
        first = max(live.first_step_seconds + (live.hang_seconds if ranks > 1 else 0.0), least)
        match self.mark.kind:
            case "starting" | "waiting":
                return first
            case "evaluating":
                longest = self.longest_evaluation_seconds
                return first if longest is None else max(live.hang_factor * longest, least)
            case "ending" | "leaving" if not self.makes_last_step:
                return first + spec.checkpoints.max_work_at_risk_seconds
        usual = self.usual_step_seconds
        return first if usual is None else max(live.hang_factor * usual, least)

    def rank_limit_seconds(self, spec: RunSpec) -> float:
        """Seconds without any progress after which the trainer counts as hung. This limit applies if this rank may be
        waiting for another rank."""
        # The longer limit gives the other ranks time to name the hung rank, before this rank itself counts as hung.
        return self.limit_seconds(spec, ranks=2) - spec.liveness.hang_seconds / 2

    def _set(self, kind: Kind) -> None:
        self._mark(Mark(kind, self.mark.number + 1, self.mark.step))

    def _mark(self, mark: Mark) -> None:
        with self._taking:
            if not self._is_taken:
                self.mark = mark
                return
        self.keep_out()
