"""Defines the evidence of a resume: witness rows, findings, and the verdict."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from segue.records.documents import Value


class StateMark(Value):
    """A summary of one part of the state after a step. For large tensors, it uses evenly spaced values."""

    digest: str = Field(description="Hash of all bits of the values.")
    plain: str = Field(description="Hash of the values that are not floating-point numbers, and of all shapes.")
    norm: float | None = Field(None, description="L2 norm of the finite floating-point values; None: no such values.")


class WitnessRow(Value):
    """The results of one step, in full precision."""

    step: int = Field(ge=1, description="Global step of these results.")
    loss: float
    grad_norm: float
    param_norm: float = Field(description="Parameter norm after the optimizer step.")
    lr: tuple[float, ...]
    loss_scale: float | None = None
    batch_fingerprint: str = Field(
        description="Hash of the set of sample ids, independent of their order; empty: not recorded."
    )
    input_fingerprint: str = Field(description="Hash of the bytes of the batch; empty: not recorded.")
    streams: dict[str, str] | None = Field(
        None, description="Hash of each RNG stream after the batch was drawn; None: not recorded."
    )
    state: dict[str, StateMark] | None = Field(
        None,
        description="State mark of each part of the state after the step, by name; only the last row of a "
        "witness has marks.",
    )


class VerdictKind(StrEnum):
    """The possible verdicts about a resume."""

    EXACT = "exact"
    EQUIVALENT = "equivalent"
    UNVERIFIED = "unverified"
    BROKEN = "broken"


class Finding(Value):
    """One reason in a verdict."""

    component: str = Field(
        description="Component that was lost or that differs, e.g. optimizer, rng.torch, data order."
    )
    channel: str = Field(description="Channel that shows the difference, e.g. digest, loss, grad_norm.")
    step: int | None = Field(
        None, description="First step that differs; None: the difference was found before any step."
    )
    sentence: str = Field(description="Description of the difference, with the evidence.")
    fix: str = Field("", description="Action that corrects the difference; empty in records of older versions.")

    @property
    def with_fix(self) -> str:
        """The sentence, followed by the fix."""
        return f"{self.sentence}. Fix: {self.fix}" if self.fix else self.sentence


_MOST_LOST = 4


class Verdict(Value):
    """The result of the check of a resume, and the numbers of compared components and steps."""

    kind: VerdictKind
    findings: tuple[Finding, ...] = ()
    components_compared: int = Field(0, ge=0)
    rows_compared: int = Field(
        0, ge=0, description="Number of steps that were replayed and compared with the sealed witness."
    )
    environment_changes: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = Field(
        (),
        description="Parts of the setup or the steps that could not be compared, because the training code hides them.",
    )
    noise: dict[str, float] = Field(
        default_factory=dict,
        exclude_if=lambda noise: not noise,
        description="Largest measured relative difference between replays from one state, by channel; the tolerances "
        "are derived from this difference. Empty: no noise is known, and kernels count as deterministic.",
    )

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if self.findings and self.kind is VerdictKind.UNVERIFIED and self.findings[0].channel == "carried":
            return f"{self.kind}: {self._lost_in_words}"
        if self.findings:
            return f"{self.kind}: {self.findings[0].with_fix}"
        changed = f"; environment differs in {', '.join(self.environment_changes)}" if self.environment_changes else ""
        unknown = f"; not compared: {', '.join(self.not_compared)}" if self.not_compared else ""
        counts = f"{self.components_compared} components and {self.rows_compared} steps compared"
        if self.kind is VerdictKind.UNVERIFIED and not self.rows_compared:
            why = (
                "the previous attempt recorded no step after the checkpoint, or this attempt ended before it repeated "
                "a step"
            )
            counts = f"{self.components_compared} components compared, but no step: {why}"
        noisy = "; within the noise of kernels that are not deterministic" if self.noise else ""
        return f"{self.kind}: {counts}{noisy}{changed}{unknown}"

    @property
    def _lost_in_words(self) -> str:
        """A sentence about state that the resume lacks and that later steps use. All compared state is
        equal.
        """
        lost = [finding for finding in self.findings if finding.channel == "carried"]
        counts = f"{self.components_compared} components and {self.rows_compared} steps"
        more = f"; {len(lost) - _MOST_LOST} more" if len(lost) > _MOST_LOST else ""
        said = "; ".join(finding.sentence for finding in lost[:_MOST_LOST])
        fixes = "; ".join(dict.fromkeys(finding.fix for finding in lost if finding.fix))
        fix = f". Fix: {fixes}" if fixes else ""
        return f"exact only in what was compared ({counts}); not restored: {said}{more}{fix}"
