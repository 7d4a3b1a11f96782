"""The comparison of the live state with the committed state. The comparison is made immediately before the first batch
is drawn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import dropwhile, takewhile

from segue.checkpoints.format.digests import Digests
from segue.checkpoints.format.snapshot import Snapshot, take
from segue.checkpoints.loading.snapshot import committed_as
from segue.continuity.recipe_diff import PACKAGES, UNTRACKED, SetupChanges, noted_kernels, noted_packages, setup_changes
from segue.errors import MissingObjectError
from segue.records import Finding, Heartbeat, WitnessRow
from segue.runlog import keys
from segue.runlog.history import Checkpoint, read_history
from segue.runlog.log import RunLog
from segue.stores.base import StoreReadError
from segue.stores.retry import patiently
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.replays.fresh import SecondOpinion
from segue.trainer.resuming.comparison import Comparison, RestoredState, Terms, check_metric
from segue.trainer.resuming.found import Found
from segue.trainer.workloads.components import Component
from segue.trainer.workloads.outside import OutsideState
from segue.trainer.workloads.state import capture

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StateCheck:
    """The check of the restored state against the commit. All ranks must make this check together."""

    runlog: RunLog
    ranks: Ranks
    terms: Terms
    opinion: SecondOpinion | None
    """The second opinion: fresh processes that show which settings differ between processes. None if no process is
    asked."""

    def compare(
        self,
        found: Found,
        components: Mapping[str, Component],
        *,
        left_out: Collection[str],
        evaluate: Callable[[], float] | None,
    ) -> Comparison:
        """Collect all facts that are known before the first step. If `evaluate` changes the state, the changes are
        undone.

        `left_out` has fingerprints of batches that this attempt skips although the previous attempt trained on them.
        Rows from the first skipped batch on are not compared. `evaluate` computes the user's metric; None if there is
        no metric to compare.
        """
        checkpoint, as_built = found.checkpoint, found.as_built(components)
        step, count = checkpoint.manifest.step, len(components)
        log.info("state restored step=%d components=%d bytes=%d", step, count, found.read_bytes)
        live = take(capture({n: c for n, c in components.items() if n not in as_built}), copy=False, to_host=False)
        committed, terms = checkpoint.manifest.environment, self.terms
        comparison = Comparison(
            checkpoint=checkpoint,
            committed=self._committed_digests(found, live),
            restored=RestoredState.of(live, components),
            environment_changes=terms.changes_since(committed),
            other_packages=committed.other_packages(terms.environment),
            has_other_kernels=committed.has_other_kernels(terms.environment),
            setup=SetupChanges(),
            untracked=(),
            values_at_commit=found.source.snapshot.skeletons.get(UNTRACKED, {}),
            as_built=as_built,
        )
        if self.ranks.is_leader:  # The stored setup is the leader's.
            comparison = self._with_setup(comparison, found, live, components)
        if evaluate is not None and self.ranks.all(not comparison.is_lost) and not comparison.environment_changes:
            metric = check_metric(evaluate, components, found=found, ranks=self.ranks)
            comparison = replace(comparison, metric=metric)
        witness = self._comparable_rows(checkpoint, left_out) if self.ranks.is_leader else ()
        last = self.ranks.gather_texts(str(max((row.step for row in witness), default=0)))[0]
        return replace(comparison, witness=witness, last_witnessed=int(last))

    def _committed_digests(self, found: Found, live: Snapshot) -> Digests:
        if self.ranks.count == 1 and found.ranks == 1:
            return found.source.digests
        return committed_as(live, found.source.snapshot)

    def _with_setup(
        self, comparison: Comparison, found: Found, live: Snapshot, components: Mapping[str, Component]
    ) -> Comparison:
        known = patiently(lambda: read_history(self.runlog), what="log").process_values
        setup = self._setup_changes(comparison, found, live, process_values=known)
        if setup.findings and self.opinion is not None:
            own = self.opinion.process_values(found.checkpoint, live.skeletons)
            setup = self._setup_changes(comparison, found, live, process_values=(*known, *own))
        for finding in setup.accepted:
            log.info("accepted change component=%s detail=%s", finding.component, finding.sentence)
        outside, untracked = components.get(UNTRACKED), comparison.untracked
        noted = setup.noted
        if isinstance(outside, OutsideState):
            untracked = outside.lost(comparison.values_at_commit)
            noted = (*noted, *outside.of_process())
        noted = (*noted, *noted_packages(comparison.other_packages))
        if comparison.has_other_kernels:
            noted = (*noted, *noted_kernels())
        return replace(comparison, setup=replace(setup, noted=noted), untracked=untracked)

    def _setup_changes(
        self, comparison: Comparison, found: Found, live: Snapshot, *, process_values: Collection[str]
    ) -> SetupChanges:
        packages = [PACKAGES] if comparison.other_packages else []
        return setup_changes(
            found.source.snapshot.skeletons,
            live.skeletons,
            environment_changes=(*comparison.environment_changes, *packages),
            accept=self.terms.accept,
            process_values=process_values,
        )

    def _comparable_rows(self, checkpoint: Checkpoint, left_out: Collection[str]) -> tuple[WitnessRow, ...]:
        rows = sorted(self._expected_rows(checkpoint), key=lambda row: row.step)
        return tuple(takewhile(lambda row: row.batch_fingerprint not in left_out, rows))

    def _expected_rows(self, checkpoint: Checkpoint) -> tuple[WitnessRow, ...]:
        if checkpoint.rows:
            return checkpoint.rows
        # The attempt was killed before it wrote the seal. The rows of its last heartbeat still count.
        key = keys.heartbeat_key(self.runlog.run_id, checkpoint.ref.attempt_id)
        try:
            beat = Heartbeat.model_validate_json(self.runlog.store.get(key))
        except (MissingObjectError, StoreReadError, ValueError):
            return ()
        # Only rows that directly follow this save count, and not rows after a later save.
        first = checkpoint.manifest.step + 1
        rows = dropwhile(lambda row: row.step < first, beat.rows)
        return tuple(row for number, row in enumerate(rows) if row.step == first + number)


def changed_by_another_hand(comparison: Comparison, components: Mapping[str, Component]) -> tuple[Finding, ...]:
    """Return the changes that other code has made since the restore. The call comes immediately before the first step.

    Every rank must call this function, because only all ranks together can capture a sharded state.
    """
    outside = components.get(UNTRACKED)
    if not isinstance(outside, OutsideState):
        return ()
    known = {name: each for name, each in components.items() if name not in comparison.as_built}
    return outside.by_another_hand(lambda: capture(known), comparison.values_at_commit)
