"""Restoring an attempt's state, and judging whether the resume continued the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile, takewhile
from typing import Any

import torch

from segue.checkpoints.format.digests import Digests, owners
from segue.checkpoints.format.dtensor import SliceNotReadError
from segue.checkpoints.format.snapshot import Snapshot, take
from segue.checkpoints.loading.live_digest import Looks, digest
from segue.checkpoints.loading.own_slices import OwnSlices
from segue.checkpoints.loading.select import Restorable, newest_valid
from segue.checkpoints.loading.snapshot import committed_as
from segue.checkpoints.saving.writer_client import ShardWriter
from segue.continuity.differences import CONTENT, FLOATS, STATE
from segue.continuity.naming import CARRIED
from segue.continuity.noise import FIX, NONE, Noise, in_words, known_noise, noise_of_attempts
from segue.continuity.recipe_diff import PACKAGES, UNTRACKED, SetupChanges, noted_packages, setup_changes
from segue.continuity.verdict import Prelude, digest_findings, judge, prelude_findings, state_findings
from segue.continuity.witness import StepRow
from segue.errors import BrokenResumeError, MissingObjectError
from segue.records import CheckpointRef, Environment, Finding, Heartbeat, Verdict, VerdictKind, WitnessRow
from segue.runlog import keys
from segue.runlog.entries import Entry, VerdictEntry
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog, Stamp
from segue.stores.base import Store, StoreReadError
from segue.stores.retry import patiently
from segue.trainer.claim import Claim
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.replays.metric import MetricCheck
from segue.trainer.replays.opinion import SecondOpinion
from segue.trainer.workloads.components import Component
from segue.trainer.workloads.outside import OutsideState
from segue.trainer.workloads.state import capture, restore_all

log = logging.getLogger(__name__)

_CHANGED_BY_STEP = ("model", "buffers", "modes", "optimizer", "scheduler", "scaler")
"""Components that only a step changes."""


class Resume:
    """One attempt's resume, from the restore to its verdict. Without a checkpoint there is nothing to judge."""

    def __init__(
        self,
        runlog: RunLog,
        claim: Claim,
        *,
        environment: Environment,
        accept: Collection[str] = (),
        fast: Sequence[Store] = (),
        ranks: Ranks | None = None,
    ) -> None:
        self._runlog, self._claim, self._fast = runlog, claim, fast
        self.environment = environment
        """That of this process; known only after the recipe was built, which may change it."""
        self.opinion: SecondOpinion | None = None
        """Whom to ask before a resume is called broken; None: nobody."""
        self._accept, self._setup = accept, SetupChanges()
        self._untracked: tuple[Finding, ...] = ()
        self._components: Mapping[str, Component] = {}
        self._values_at_commit: Mapping[str, Any] = {}
        self._metric = MetricCheck()
        self._early: tuple[Finding, ...] = ()
        self._other_hands: tuple[Finding, ...] = ()
        self.is_order_of_sums_relevant = True
        """Whether the run's numbers depend on the order in which the gradient norm is summed."""
        self._ranks = ranks or Ranks()
        self._committed: Digests | None = None
        self._source: Restorable | None = None
        self._restored: Digests | None = None
        self._witness: tuple[WitnessRow, ...] = ()
        self._own: OwnSlices | None = None
        """What this rank has read of a sharded state; None: everything."""
        self._memory_bytes: int | None = None
        self._looks = Looks.at({})
        self._left_out: Collection[str] = ()
        self._last_witnessed = 0
        self._replay: list[WitnessRow] = []
        self.verdict: Verdict | None = None
        self.is_undecided = False
        """Whether a notice left no time to find out what a difference means; there is no verdict then."""

    @property
    def parent(self) -> CheckpointRef | None:
        """The checkpoint this attempt resumed from."""
        return self._source.checkpoint.ref if self._source else None

    @property
    def is_pending(self) -> bool:
        """Whether the verdict is still missing; nothing may be committed before it."""
        return self._source is not None and self.verdict is None

    def is_pending_after(self, step: int) -> bool:
        """Whether the verdict will still be missing when so many steps are made and compared."""
        return self.is_pending and step < self._last_witnessed

    def find(
        self,
        *,
        at_most: CheckpointRef | None = None,
        own: OwnSlices | None = None,
        memory_bytes: int | None = None,
    ) -> CheckpointRef | None:
        """Select the newest valid checkpoint that is not newer than `at_most`, and verify its bytes, or those of `own`.

        Raises:
            FencedError: a newer claim exists.
            MachineTooSmallError: it needs more than `memory_bytes`.
            StoreReadError: the store could not be read.
        """
        readers = self._ranks if self._ranks.count > 1 else None
        self._own, self._memory_bytes = own, memory_bytes
        self._source = newest_valid(
            self._runlog,
            epoch=self._claim.epoch,
            at_most=at_most,
            fast=self._fast,
            readers=readers,
            own=own,
            memory_bytes=memory_bytes,
        )
        return self.parent

    @property
    def stored(self) -> Collection[str]:
        """Names of the components that the selected checkpoint holds."""
        return self._source.snapshot.skeletons if self._source is not None else ()

    @property
    def stored_ranks(self) -> int | None:
        """How many ranks made the selected checkpoint; None without one."""
        return self._source.checkpoint.manifest.environment.world_size if self._source is not None else None

    def restore(self, components: Mapping[str, Component]) -> None:
        """Restore the live objects from the selected checkpoint, in order, the random streams last."""
        if self._source is None:
            return
        own, missing = self._own, ""
        try:
            restore_all(components, self._source.snapshot)
        except SliceNotReadError as error:
            missing = str(error)
        if own is None or not (missing := self._ranks.first_of(missing)):
            return
        log.info("the state is sharded otherwise than it was, and is read whole slice=%s", missing)
        self.find(at_most=self.parent, memory_bytes=self._memory_bytes)
        if self._source is not None:
            restore_all(components, self._source.snapshot)

    def offer_base(self, shards: ShardWriter) -> int | None:
        """Make the restored checkpoint the base of the first incremental save; return its step, or None without one.

        A checkpoint that was read from a fast tier is no base: its durable bytes, on which later saves would build,
        were not verified.
        """
        if self._source is None or self._fast:
            return None
        step = self._source.checkpoint.manifest.step
        shards.remember(step, self._source.base)
        return step

    def leave_out(self, batch_fingerprints: Collection[str]) -> None:
        """Expect no row from the first of these batches on: the attempt before trained on them, this one skips them."""
        self._left_out = batch_fingerprints

    def check_state(self, components: Mapping[str, Component], *, evaluate: Callable[[], float] | None = None) -> None:
        """Compare the live state with the committed one, immediately before the first batch is drawn.

        `evaluate` computes the user's metric, which is compared with that of the commit; None: there is none. What it
        changes in the state is restored again.

        Raises:
            BrokenResumeError: a component differs from the commit; the verdict is in the log.
        """
        if self._source is None:
            return
        self._components = components
        manifest, tensors = self._source.checkpoint.manifest, self._source.snapshot.tensors.values()
        # Tensors of which this rank read only a part are on torch's meta device, without that part.
        read = sum(tensor.nbytes for tensor in tensors if not tensor.is_meta)
        log.info("state restored step=%d components=%d bytes=%d", manifest.step, len(components), read)
        trees = capture({n: c for n, c in components.items() if not self._is_left_out(n)})
        live = take(trees, copy=False, to_host=False)
        self._committed, self._restored = self._committed_digests(live), digest(live)
        self._looks = Looks.at(_fixed(_on_device(live.tensors), components))
        self._compare_setup(live, components)
        is_lost = bool(self._lost_state() or self._setup.findings)
        if evaluate is not None and self._ranks.all(not is_lost) and not self._environment_changes:
            self._metric.compare(evaluate, components, source=self._source, ranks=self._ranks)
        # The bytes are not needed from here on; a large model would otherwise be held twice.
        self._source = replace(self._source, snapshot=Snapshot({}, {}))
        self._witness = self._comparable_rows() if self._ranks.is_leader else ()
        last = self._ranks.gather_texts(str(max((row.step for row in self._witness), default=0)))[0]
        self._last_witnessed = int(last)
        if not self._ranks.all(not is_lost) or not self._last_witnessed:
            self.settle()

    def _lost_state(self) -> tuple[Finding, ...]:
        assert self._committed is not None
        assert self._restored is not None
        return digest_findings(self._committed, self._restored, environment_changes=self._environment_changes)

    def _is_left_out(self, component: str) -> bool:
        """Whether the run begins, as a fork, with this component as built: the other run's state of it is not there."""
        assert self._source is not None
        fork = self._source.checkpoint.manifest.forked_from
        return fork is not None and component not in self._source.snapshot.skeletons

    def before_step(self, components: Mapping[str, Component], prelude: Prelude, *, compare_state: bool = True) -> None:
        """Compare again after the batch is drawn and before the step, so that no step trains on a difference.

        With `compare_state=False` the program's own code ran since the check, and may have changed the state as it did
        in the attempt before. Several ranks find a difference after the step instead, when they exchange their results
        anyway.

        Raises:
            BrokenResumeError: the state or the input differs; the verdict is in the log.
        """
        is_first = not self._replay
        if self.is_pending and is_first:  # On every rank: a sharded state may be captured by all together alone.
            self._look_for_other_hands()
        if not self.is_pending or self._ranks.count > 1:
            return
        found = self._changed_since(components) if is_first and compare_state else ()
        expected = next((row for row in self._witness if row.step == prelude.step), None)
        if not found and expected is not None:
            changes = self._environment_changes
            found = prelude_findings(expected, prelude, environment_changes=changes, is_first=is_first)
        if found:
            self._early = found
            self.settle()

    def _changed_since(self, components: Mapping[str, Component]) -> tuple[Finding, ...]:
        """What of the restored state has changed since the check. Drawing a batch may advance streams and `extra`."""
        before = self._restored
        assert before is not None
        fixed = {name: c for name, c in components.items() if name in _CHANGED_BY_STEP and name in before.components}
        live = self._digest_again(take(capture(fixed), copy=False, to_host=False), before)
        digests = {name: value for name, value in before.components.items() if name in fixed}
        tensors = {
            name: before.tensors[name] for name, owner in owners(before.tensors, before.components) if owner in fixed
        }
        return state_findings(Digests(digests, tensors), live)

    def _digest_again(self, live: Snapshot, before: Digests) -> Digests:
        """Digests of the same state a little later. What an accelerator holds is hashed only if it looks different."""
        there = _on_device(live.tensors)
        is_same = self._looks.finds_same(there)
        return digest(live, known={name: before.tensors[name] for name in there} if is_same else None)

    def wants_state(self, step: int) -> bool:
        """Whether the row of this step is compared with one that has marks of the state."""
        return self.is_pending and any(row.step == step and row.state is not None for row in self._witness)

    def add_replayed(self, row: StepRow) -> None:
        """Add the row of one replayed step; settles the verdict after the last expected row.

        Raises:
            BrokenResumeError: the replay differs from the witness; the verdict is in the log.
        """
        if not self.is_pending:
            return
        self._replay.append(row.as_witness())
        if row.step >= self._last_witnessed:
            self.settle()

    def settle(self) -> None:
        """Reach the verdict from the steps replayed so far and write it to the log.

        Raises:
            BrokenResumeError: it is `broken`.
        """
        if self._source is None or self._restored is None or self._committed is None or self.verdict is not None:
            return
        manifest = self._source.checkpoint.manifest
        noise = known_noise(self._history(), self.environment) if self._ranks.is_leader else NONE
        verdict = self._judged(noise)
        if _may_be_noise(verdict):
            self._setup = replace(self._setup, noted=(*self._other_hands, *self._setup.noted))
            verdict = self._judged(noise)
        if self.opinion is not None and _may_be_noise(verdict):
            found = self.opinion.noise(
                self._source.checkpoint,
                witness=self._witness,
                attempt=self._replay,
                is_whole=not self._early,
                is_noisy=bool(noise.floats),
                is_lost=bool(self._untracked),
            )
            self.is_undecided = found is None
            if found is None:
                log.warning(
                    "the resume is not judged: a notice came before fresh processes could repeat the steps; the next "
                    "attempt judges it"
                )
                return
            verdict = self._judged(noise | found)
        elif self.opinion is None and self._ranks.is_leader and _may_be_noise(verdict):
            verdict = self._judged(noise | self._noise_of_earlier_attempts())
        verdict = self._of_all_ranks(verdict)
        self.verdict = verdict
        if self._ranks.is_leader:
            self._append(verdict, self._source.checkpoint.ref)
        is_broken = verdict.kind is VerdictKind.BROKEN
        # What is broken, and the fix, is in the error that ends the attempt, and is shown once.
        is_lost = not is_broken and any(finding.channel == CARRIED for finding in verdict.findings)
        said = verdict.kind if is_broken else verdict.sentence
        log.log(logging.WARNING if is_lost else logging.INFO, "resume judged step=%d verdict=%s", manifest.step, said)
        if is_broken:
            finding = verdict.findings[0]
            raise BrokenResumeError(component=finding.component, detail=finding.sentence, fix=finding.fix)

    def _look_for_other_hands(self) -> None:
        """Note what somebody changed between the restore and the first step: the cause, if the replay differs."""
        outside = self._components.get(UNTRACKED)
        if isinstance(outside, OutsideState):
            known = {name: each for name, each in self._components.items() if not self._is_left_out(name)}
            self._other_hands = outside.by_another_hand(lambda: capture(known), self._values_at_commit)

    def _noise_of_earlier_attempts(self) -> Noise:
        """What attempts from the same checkpoint differ in: after a first broken resume there is a second one."""
        assert self._source is not None
        if self._early or self._environment_changes:
            return NONE
        own, parent = self._claim.attempt_id, self._source.checkpoint.ref
        entries = [each for each in self._history().resumes if each.parent == parent and each.attempt_id != own]
        earlier = [each.replay for each in entries if each.replay and not each.verdict.environment_changes]
        found = noise_of_attempts(self._witness, self._replay, earlier, is_lost=bool(self._untracked))
        if found.floats:
            log.warning("%s; tolerances follow from that. Fix: %s", in_words(found.floats), FIX)
        return found

    def _history(self) -> History:
        return patiently(lambda: read_history(self._runlog), what="log")

    def _judged(self, noise: Noise) -> Verdict:
        """The verdict. Packages in other versions count as another environment only if the bits are not equal."""
        changes, others = self._environment_changes, self._other_packages
        verdict = self._judged_in(noise, changes)
        if others and verdict.kind is VerdictKind.BROKEN:
            verdict = self._judged_in(noise, (*changes, *others))
        return verdict.model_copy(update={"environment_changes": (*changes, *others)})

    def _judged_in(self, noise: Noise, environment_changes: tuple[str, ...]) -> Verdict:
        assert self._committed is not None
        assert self._restored is not None
        return judge(
            committed=self._committed,
            restored=self._restored,
            witness=self._witness,
            replay=self._replay,
            environment_changes=environment_changes,
            setup=self._setup,
            untracked=self._untracked,
            early=self._early,
            metric=self._metric.findings(noise),
            noise=noise,
        )

    @property
    def _environment_changes(self) -> tuple[str, ...]:
        assert self._source is not None
        changes = self._source.checkpoint.manifest.environment.differs_from(self.environment)
        return tuple(name for name in changes if name != "arithmetic" or self.is_order_of_sums_relevant)

    @property
    def _other_packages(self) -> tuple[str, ...]:
        assert self._source is not None
        return self._source.checkpoint.manifest.environment.other_packages(self.environment)

    def _compare_setup(self, live: Snapshot, components: Mapping[str, Component]) -> None:
        assert self._source is not None
        if not self._ranks.is_leader:
            return  # The stored setup is the leader's; that of another rank may hold its own rank number.
        committed = self._source.snapshot.skeletons
        known = self._history().process_values
        self._setup = self._setup_changes(live, known)
        if self._setup.findings and self.opinion is not None:
            own = self.opinion.process_values(self._source.checkpoint, live.skeletons)
            self._setup = self._setup_changes(live, (*known, *own))
        outside = components.get(UNTRACKED)
        if isinstance(outside, OutsideState):
            self._values_at_commit = committed.get(UNTRACKED, {})
            self._untracked = outside.lost(self._values_at_commit)
            self._setup = replace(self._setup, noted=(*self._setup.noted, *outside.of_process()))
        self._setup = replace(self._setup, noted=(*self._setup.noted, *noted_packages(self._other_packages)))
        for finding in self._setup.accepted:
            log.info("accepted change component=%s detail=%s", finding.component, finding.sentence)

    def _setup_changes(self, live: Snapshot, process_values: Collection[str]) -> SetupChanges:
        assert self._source is not None
        return setup_changes(
            self._source.snapshot.skeletons,
            live.skeletons,
            environment_changes=(*self._environment_changes, *([PACKAGES] if self._other_packages else [])),
            accept=self._accept,
            process_values=process_values,
        )

    def _committed_digests(self, live: Snapshot) -> Digests:
        assert self._source is not None
        if self._ranks.count == 1 and self._source.checkpoint.manifest.environment.world_size == 1:
            return self._source.digests
        return committed_as(live, self._source.snapshot)

    def _of_all_ranks(self, verdict: Verdict) -> Verdict:
        """The first broken verdict of any rank, else the leader's: only the leader has the witness."""
        verdicts = [Verdict.model_validate_json(text) for text in self._ranks.gather_texts(verdict.model_dump_json())]
        broken = (found for found in verdicts if found.kind is VerdictKind.BROKEN)
        return next(broken, verdicts[0])

    def _append(self, verdict: Verdict, parent: CheckpointRef) -> None:
        def build(stamp: Stamp) -> Entry:
            common = stamp(epoch=self._claim.epoch)
            return VerdictEntry.model_validate(
                common
                | {
                    "attempt_id": self._claim.attempt_id,
                    "parent": parent,
                    "verdict": verdict,
                    "replay": tuple(self._replay),
                }
            )

        patiently(lambda: self._runlog.append(build, epoch=self._claim.epoch), what="verdict")

    def _comparable_rows(self) -> tuple[WitnessRow, ...]:
        rows = sorted(self._expected_rows(), key=lambda row: row.step)
        return tuple(takewhile(lambda row: row.batch_fingerprint not in self._left_out, rows))

    def _expected_rows(self) -> tuple[WitnessRow, ...]:
        assert self._source is not None
        checkpoint = self._source.checkpoint
        if checkpoint.rows:
            return checkpoint.rows
        # The attempt was killed before the seal was written: the rows of its last heartbeat still count.
        key = keys.heartbeat_key(self._runlog.run_id, checkpoint.ref.attempt_id)
        try:
            beat = Heartbeat.model_validate_json(self._runlog.store.get(key))
        except (MissingObjectError, StoreReadError, ValueError):
            return ()
        # Rows that follow another save do not follow this one.
        first = checkpoint.manifest.step + 1
        rows = dropwhile(lambda row: row.step < first, beat.rows)
        return tuple(row for number, row in enumerate(rows) if row.step == first + number)


def _on_device(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor.device.type != "cpu"}


def _fixed(tensors: Mapping[str, torch.Tensor], components: Collection[str]) -> dict[str, torch.Tensor]:
    """Those that only a step changes."""
    return {name: tensors[name] for name, owner in owners(tensors, components) if owner in _CHANGED_BY_STEP}


def _may_be_noise(verdict: Verdict) -> bool:
    """Whether only replayed steps speak against a resume: kernels or a recipe may not compute the same twice."""
    steps = (*FLOATS, *CONTENT, STATE, CARRIED)
    return verdict.kind is VerdictKind.BROKEN and all(finding.channel in steps for finding in verdict.findings)
