"""One world. At every request to the store, another actor may take its turn, in random order. At the end, the world is
judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

import greenlet
import torch

from benchmarks.fencing.actors import Facts, Place, attempt, delete_run, parent, value_of
from benchmarks.fencing.store import MemoryStore, View, WrongReads
from segue.checkpoints.loading.read import read_stored
from segue.errors import (
    BrokenChainError,
    CheckpointError,
    ForgedRecordError,
    LogCutError,
    ReplayedRecordError,
)
from segue.records import SegmentPlan
from segue.runlog.entries import ClaimEntry, CommitEntry
from segue.runlog.history import fold, read_history
from segue.runlog.log import RunLog
from segue.signing import Signer
from segue.spec import RunSpec
from segue.testing.clock import FakeClock

KINDS = ("lost", "torn", "stale", "double", "foreign", "crash")


@dataclass(frozen=True)
class Judged:
    """The faults of one world, by kind, and the number of wrong reads."""

    seed: int
    wrong: tuple[tuple[str, str], ...]
    wrong_reads: int
    commits: int
    resumes: int
    ends: Counter[str]


class World:
    """Greenlets as actors. The running actor ends its turn before each request."""

    def __init__(self, seed: int, *, signer: Signer | None, has_wrong_reads: bool = True) -> None:
        self.seed, self.random, self.store = seed, Random(seed), MemoryStore()
        chance = self.random.choice((0.002, 0.01, 0.03)) if has_wrong_reads else 0.0
        self.wrong = WrongReads(Random(seed + 1), chance=chance, again_chance=0.5)
        keep = self.random.choice((2, 3))
        spec = RunSpec.parse(
            {"run_id": "r", "recipe": "a.b:c", "steps": 10_000, "store": {"url": "x"}, "checkpoints": {"keep": keep}}
        )
        self.place = Place(spec, FakeClock(), signer, Facts(), self.random)
        self._actors: list[greenlet.greenlet] = []

    def run(self) -> Judged:
        """Run the world to its end and judge it. The same seed gives the same world."""
        self._add(partial(self._parent))
        if self.random.random() < 0.25:
            self._add(self._deleted_and_begun_again)
        while self._actors:
            actor = self.random.choice(self._actors)
            actor.switch()
            self._actors = [each for each in self._actors if not each.dead]
        facts = self.place.facts
        counts = (self.wrong.count, len(facts.committed), len(facts.resumed))
        return Judged(self.seed, tuple(self._faults()), *counts, Counter(facts.ends))

    def _add(self, act: Callable[[], None]) -> None:
        self._actors.append(greenlet.greenlet(act, parent=greenlet.getcurrent()))

    def _view(self) -> View:
        return View(self.store, self.wrong, self._give_turn)

    def _give_turn(self) -> None:
        current = greenlet.getcurrent()
        if current.parent is not None:
            current.parent.switch()

    def _parent(self) -> None:
        parent(self.place, self._view(), self._start, attempts=self.random.randrange(2, 6))

    def _start(self, plan: SegmentPlan) -> None:
        main = greenlet.getcurrent().parent
        act = partial(attempt, self.place, self._view(), plan, saves=self.random.randrange(1, 6))
        self._actors.append(greenlet.greenlet(act, parent=main))

    def _deleted_and_begun_again(self) -> None:
        for _ in range(self.random.randrange(400)):
            self._give_turn()
        delete_run(self.place, View(self.store, WrongReads(self.random, chance=0, again_chance=0), self._give_turn))
        self._parent()

    def _faults(self) -> Iterator[tuple[str, str]]:
        """The faults at the end, read without wrong answers."""
        facts, log = self.place.facts, self.place.log(self.store)
        yield from (("crash", crash) for crash in facts.crashes)
        try:
            read_history(log.reload())
        except (LogCutError, ForgedRecordError, ReplayedRecordError, BrokenChainError) as error:
            # A writer that was at work while its run was deleted may leave that much.
            if not self.place.facts.is_deleted:
                yield "crash", repr(error)
            return
        if log.damage and self.place.facts.is_deleted:
            return
        yield from (("lost", f"slot {damage.slot}: {damage.why}") for damage in log.damage)
        yield from self._lost(log)
        yield from self._torn(log)
        yield from self._doubles(log)
        yield from self._stale(log)

    def _lost(self, log: RunLog) -> Iterator[tuple[str, str]]:
        history = read_history(log)
        mine = [slot for log_id, slot in self.place.facts.committed if log_id == log.log_id]
        whole = {checkpoint.ref.slot: checkpoint for checkpoint in history.checkpoints}
        for slot in mine:
            if slot.number not in whole:
                yield "lost", f"the commit in slot {slot.number} counts for nobody"
            elif whole[slot.number].quarantined is not None:
                yield "lost", f"the commit in slot {slot.number} is quarantined: {whole[slot.number].quarantined}"
        if mine and not history.usable:
            yield "lost", "no checkpoint is left"

    def _torn(self, log: RunLog) -> Iterator[tuple[str, str]]:
        for checkpoint in read_history(log).usable:
            ref = checkpoint.ref
            try:
                stored = read_stored([self.store], run_id="r", manifest=checkpoint.manifest)
            except CheckpointError as error:
                yield "torn", f"step {ref.step} in slot {ref.slot}: {error}"
                continue
            data = bytes(stored.tensors["model.a"][1])
            if data != _bytes_of(value_of(ref.attempt_id, ref.step)):
                yield "torn", f"step {ref.step} in slot {ref.slot} has the bytes of another one"
            if not ref.attempt_id.endswith(log.log_id[:8]):
                yield "foreign", f"step {ref.step} in slot {ref.slot} is of {ref.attempt_id} in log {log.log_id[:8]}"

    def _doubles(self, log: RunLog) -> Iterator[tuple[str, str]]:
        highest, ids, commits = 0, set(), set()
        for slot in log.slots:
            entry = slot.entry
            if entry.entry_id in ids:
                yield "double", f"the record in slot {slot.number} is there twice"
            ids.add(entry.entry_id)
            if entry.epoch and (entry.epoch < highest or (isinstance(entry, ClaimEntry) and entry.epoch <= highest)):
                yield "double", f"slot {slot.number} is of epoch {entry.epoch} after epoch {highest}"
            highest = max(highest, entry.epoch)
            if isinstance(entry, CommitEntry):
                if (entry.attempt_id, entry.manifest.step) in commits:
                    yield "double", f"slot {slot.number} commits step {entry.manifest.step} again"
                commits.add((entry.attempt_id, entry.manifest.step))

    def _stale(self, log: RunLog) -> Iterator[tuple[str, str]]:
        """Whether a resume skipped a checkpoint that existed at the claim."""
        for log_id, claimed_in, resumed_from in self.place.facts.resumed:
            if log_id != log.log_id:
                continue
            before = fold([slot for slot in log.slots if slot.number < claimed_in]).usable
            newest = before[-1].ref.slot if before else -1
            if (resumed_from if resumed_from is not None else -1) < newest:
                yield "stale", f"the claim in slot {claimed_in} resumed from slot {resumed_from}, not {newest}"


def _bytes_of(value: float) -> bytes:
    return bytes(torch.full((8,), value).numpy().tobytes())
