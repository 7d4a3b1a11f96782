"""The audit of committed steps: new processes on this machine replay the steps from a checkpoint, and the results are
compared with the run's log.

An audit finds a machine that has computed a wrong number, for example because of a flipped bit. An audit only reads the
run: it claims nothing and appends nothing to the log. An audit may therefore use any machine, during the run or after
it.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

from pydantic import Field

from segue.clock import SystemClock
from segue.continuity.differences import pairs_of
from segue.continuity.noise import NONE, REPLAYS, Noise, known_noise, noise_of, tolerances
from segue.continuity.verdict import row_findings
from segue.errors import AuditImpossibleError, MissingShardError
from segue.launch.assignment import Assignment
from segue.records import SegmentPlan, Value, WitnessRow
from segue.runlog.history import Attempt, Checkpoint, History
from segue.runlog.log import RunLog
from segue.spec import StoreSpec
from segue.trainer.audited_steps import AuditedInterval, interval_of
from segue.trainer.rehearsal_main import copied
from segue.trainer.replays.fresh import FreshAnswer, FreshProcesses, ReplayRequest


class AuditReport(Value):
    """The result of an audit."""

    run: str
    result: Literal["exact", "equivalent", "differs", "not reproducible"] = Field(
        description="exact: equal bit for bit; equivalent: equal within the noise; differs: the replays agree with "
        "each other, but not with the log; not reproducible: the replays differ from the log and from each other."
    )
    sentence: str = Field(description="The result in words, with the fix.")
    from_step: int = Field(description="Step of the checkpoint from which the steps were replayed.")
    to_step: int = Field(description="Last replayed step.")
    step: int | None = Field(description="First step that differs from the log; None: no step differs.")
    channel: str | None = Field(description="Value that differs at this step, e.g. loss, digest; None: none differs.")
    equal_step: int = Field(description="Step of the newest stored checkpoint with equal state, before the difference.")
    trained_on: tuple[str, ...] = Field(description="Machines that trained the steps, in order.")
    audited_on: str = Field(description="Host that replayed the steps.")
    differs_on: str | None = Field(description="Machine that trained the step that differs; None: not known.")
    steps_compared: int = Field(description="Number of steps with a recorded value.")
    commits_compared: int = Field(description="Number of commits whose state was compared bit for bit.")
    replays: int = Field(description="Number of processes that replayed the steps.")
    noise: dict[str, float] = Field(description="Largest relative difference between replays, by channel.")

    @property
    def passed(self) -> bool:
        return self.result in ("exact", "equivalent")


class _Difference(NamedTuple):
    step: int
    channel: str
    what: str


def audit_steps(
    runlog: RunLog, history: History, *, store: StoreSpec, start: Checkpoint | None = None, steps: int | None = None
) -> AuditReport:
    """Replay steps after the checkpoint `start` in new processes, and compare them with the run's log.

    `interval_of` describes the default values. Nothing is written to the run.

    Raises:
        AuditImpossibleError: the steps cannot be replayed or compared. The error names the reason and the fix.
        NoCheckpointError: the run has no checkpoint.
        StoreReadError, StoreWriteError: the store could not be read, or the checkpoint could not be copied.
    """
    interval = interval_of(runlog, history, start=start, steps=steps)
    manifest = interval.start.manifest
    assignment = _assignment(runlog, history, interval, store)
    try:
        # The run may prune the checkpoint during the replays.
        with copied(runlog.store, run_id=runlog.run_id, manifest=manifest) as copy:
            request = ReplayRequest(
                assignment=assignment,
                checkpoint=interval.start.ref,
                steps=interval.to_step - manifest.step,
                copy_folder=str(copy.root),
                watched=interval.watched,
            )
            processes = FreshProcesses(request, lambda: True, SystemClock())
            return _Audit(runlog.run_id, history, interval, processes).report()
    except MissingShardError:
        raise AuditImpossibleError(
            run_id=runlog.run_id,
            why=f"the checkpoint of step {manifest.step} was pruned in the meantime",
            fix="run the same command without --from.",
        ) from None


def _assignment(runlog: RunLog, history: History, interval: AuditedInterval, store: StoreSpec) -> Assignment:
    """Return the assignment of the attempt that trained the last step, but with the store `store`.

    Raises:
        AuditImpossibleError: no process can replay the steps of this run.
    """
    spec = history.spec
    ranks = max(c.manifest.environment.world_size for c in (interval.start, *interval.commits))
    why = "" if ranks == 1 else f"{ranks} ranks trained the steps, and an audit replays only steps of one rank"
    if spec is None or spec.recipe is None:
        why = "the run trains a program, and a replay would repeat everything that the program does"
    if spec is None or why:
        fix = "use `segue drill` on the machine in question, which trains the same workload twice."
        raise AuditImpossibleError(run_id=runlog.run_id, why=why, fix=fix)
    claim = interval.attempts[interval.to_step].claim
    plan = history.plan_of(claim.segment, claim.attempt)
    own = SegmentPlan(
        segment=claim.segment,
        attempt=claim.attempt,
        capacity=claim.capacity,
        deployment="audit",
        skips=plan.skips if plan is not None else (),
    )
    return Assignment(spec=spec.model_copy(update={"store": store}), plan=own)


@dataclass(frozen=True)
class _Audit:
    run_id: str
    history: History
    interval: AuditedInterval
    processes: FreshProcesses

    def report(self) -> AuditReport:
        """Replay once. If the replay differs from the log, replay until two replays are equal, at most four times."""
        answers = [self._answer()]
        found = self._difference(answers[0], NONE)
        if found is None:
            return self._reported(answers, NONE, None)
        self._refuse_other_cause(answers[0], found)
        while len(answers) < REPLAYS and not any(one.is_same(other) for one, other in combinations(answers, 2)):
            answers.append(self._answer())
        noise = self._noise(answers)
        return self._reported(answers, noise, self._difference(answers[0], noise))

    def _answer(self) -> FreshAnswer:
        answer = self.processes.answer()
        if answer is not None and answer.rows:
            return answer
        why = "did not end" if answer is None else "restored the checkpoint, but its state differs from the commit"
        raise AuditImpossibleError(
            run_id=self.run_id,
            why=f"the replay on {platform.node()} {why}",
            fix="start the command in the folder of the run's recipe, with the packages of the run; if this does not "
            "help, correct the error in the lines above, or the state that `segue drill` names.",
        )

    def _difference(self, answer: FreshAnswer, noise: Noise) -> _Difference | None:
        """Return the first difference from the log that noise does not explain."""
        pairs = pairs_of(self.interval.recorded(answer.rows), answer.rows)
        allowed = tolerances(noise.floats, [row for row, _ in pairs])
        found = [
            _Difference(before.step, finding.channel, _shown(finding.channel, before, after))
            for finding in row_findings(pairs, exact=True, allowed=allowed)
            for before, after in pairs
            if before.step == finding.step
        ]
        found += [
            _Difference(commit.manifest.step, "digest", f"digest of {', '.join(names)}")
            for commit in self.interval.commits
            if not noise.floats and (names := self._other_parts(commit, answer))
        ]
        return min(found, key=lambda each: each.step, default=None)

    def _other_parts(self, commit: Checkpoint, answer: FreshAnswer) -> list[str]:
        committed = commit.manifest.components
        replayed = answer.digests[commit.manifest.step]
        return [name for name in committed if replayed.get(name, committed[name]) != committed[name]]

    def _refuse_other_cause(self, answer: FreshAnswer, found: _Difference) -> None:
        """Raise an error if something other than a faulty machine may have caused the difference."""
        environments = [c.manifest.environment for c in (self.interval.start, *self.interval.commits)]
        names = (f"another {name}" for each in environments for name in each.differs_from(answer.made_in))
        packages = environments[0].other_packages(answer.made_in)
        causes = [*dict.fromkeys(names), *packages, *(finding.sentence for finding in answer.recipe_changes)]
        if causes:
            raise AuditImpossibleError(
                run_id=self.run_id,
                why=f"step {found.step} differs in its {found.what}, but the replay has {'; '.join(causes)}",
                fix="replay with the recipe, config, packages and type of machine that trained the steps.",
            )

    def _noise(self, answers: list[FreshAnswer]) -> Noise:
        """Return the noise of the recipe. If replays agree, and kernels are deterministic, there is no noise."""
        first, *others = (answer.rows for answer in answers)
        known = known_noise(self.history, answers[0].made_in)
        are_alike = answers[0].is_same(answers[-1])
        is_noisy = bool(known.floats) or (are_alike and self.processes.has_other_kernels(first))
        if are_alike and not is_noisy:
            return NONE
        unit, log = max(answer.unit for answer in answers), self.interval.recorded(first)
        return known | noise_of(log, first, others, is_attempt_fresh=True, is_noisy=is_noisy, unit=unit)

    def _reported(self, answers: list[FreshAnswer], noise: Noise, found: _Difference | None) -> AuditReport:
        interval, begin = self.interval, self.interval.start.manifest.step
        stored = [c for c in interval.commits if c in self.history.usable and not self._other_parts(c, answers[0])]
        equal = [c.manifest.step for c in stored if found is None or c.manifest.step < found.step]
        is_fault_here = any(not answer.is_same(answers[0]) for answer in answers)
        report = AuditReport(
            run=self.run_id,
            result=("equivalent" if noise.floats else "exact")
            if found is None
            else ("not reproducible" if is_fault_here else "differs"),
            sentence="",
            from_step=begin,
            to_step=interval.to_step,
            step=found.step if found is not None else None,
            channel=found.channel if found is not None else None,
            equal_step=max(equal, default=begin),
            trained_on=tuple(dict.fromkeys(map(_machine_of, interval.attempts.values()))),
            audited_on=platform.node(),
            differs_on=_machine_of(interval.attempts[found.step]) if found is not None and not is_fault_here else None,
            steps_compared=len(interval.recorded(answers[0].rows)),
            commits_compared=len(interval.commits) if not noise.floats else 0,
            replays=len(answers),
            noise=dict(noise.floats),
        )
        return report.model_copy(update={"sentence": _in_words(report, found)})


def _in_words(report: AuditReport, found: _Difference | None) -> str:
    said = (
        f"{report.result}: steps {report.from_step + 1} to {report.to_step}, "
        f"trained on {', '.join(report.trained_on)}, replayed on {report.audited_on}; {report.steps_compared} steps "
        f"and the state of {report.commits_compared} commits compared"
    )
    if found is None:
        return f"{said}{'; within the noise of kernels that are not deterministic' if report.noise else ''}"
    if report.differs_on is None:
        return (
            f"{said}; first difference at step {found.step}: {found.what}. The replays also differ from each other: "
            f"{report.audited_on} or the recipe is not deterministic. Fix: replay fewer steps with --steps 8, so that "
            "noise stays small; if the replays still differ, set deterministic = true in the run spec, or test "
            f"{report.audited_on}."
        )
    return (
        f"{said}; first difference at step {found.step}: {found.what}. The replays agree with each other, so "
        f"{report.differs_on} has computed a wrong value at this step, or before it and after step "
        f"{report.equal_step}. Fix: test {report.differs_on} before it trains again, and train a new run from the last "
        f"equal checkpoint: segue run --run-id NEW --from {report.run}@{report.equal_step}."
    )


def _machine_of(attempt: Attempt) -> str:
    # Older claims have only the host name.
    return ", ".join(machine.in_words for machine in attempt.claim.machines) or attempt.claim.host


def _shown(channel: str, before: WitnessRow, after: WitnessRow) -> str:
    one, other = getattr(before, channel), getattr(after, channel)
    if isinstance(one, dict):
        return f"{channel} of {', '.join(name for name in one if one[name] != other.get(name))}"
    return f"{channel} ({one} in the log, {other} in the replay)"
