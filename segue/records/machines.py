"""Records the machines of attempts: their names, the check before the claim, and the evidence about them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from segue.records.documents import Value
from segue.units import Moment, Seconds

MachineKind = Literal["slurm", "kubernetes", "ray", "host"]


class Machine(Value):
    """A machine on which ranks of an attempt ran."""

    kind: MachineKind = Field(
        description="Cluster that gave the name; host: no cluster is known, and the name is the host name."
    )
    name: str = Field(description="Name of the node in its cluster (for Ray, the node id), or host name.")
    devices: tuple[str, ...] = Field((), description="Serial ids (UUIDs) of the accelerators that the ranks used.")

    @property
    def in_words(self) -> str:
        devices = f" ({', '.join(self.devices)})" if self.devices else ""
        return f"the {'machine' if self.kind == 'host' else f'{self.kind} node'} {self.name}{devices}"


class MachineCheck(Value):
    """The check of a machine before an attempt claims the run there."""

    seconds: Seconds = Field(description="Seconds for which the attempt waited for the check.")
    results: dict[str, str] = Field(description="Result of each part: memory, product, disk, device, store.")
    problems: tuple[str, ...] = Field((), description="Reasons why the machine must not train; empty: it may train.")

    def failure_of(self, machine: Machine) -> str:
        """Return the problems of the machine that was checked, in words."""
        return f"{machine.in_words} failed the check before the claim: {'; '.join(self.problems)}"


class SlowRank(Value):
    """A rank whose own time in a step is longer than that of the other ranks of its attempt."""

    rank: int = Field(ge=0)
    machine: Machine = Field(description="Machine of this rank, with the accelerator of this rank.")
    slowness: float = Field(
        gt=0, description="Own time of the rank in a step, without waits, divided by the median of the other ranks."
    )

    @property
    def in_words(self) -> str:
        return f"{self.why} on {self.machine.in_words}"

    @property
    def why(self) -> str:
        """The evidence against the machine, without its name."""
        return f"rank {self.rank} took {self.slowness:.2f} times as long as the other ranks"


class SeenMachine(Value):
    """The evidence from one attempt about one of its machines."""

    machine: Machine
    zone: str = Field("", description="Zone that the cloud's metadata service named; empty: not known.")
    pool: str = Field(description="Deployment of the pool.")
    log_id: str = Field(description="Id of the log of the run.")
    segment: int
    attempt: int
    begun_at: Moment = Field(description="Time of the claim, or of the failed check.")
    seconds: Seconds = Field(description="Seconds from `begun_at` to the newest evidence.")
    end: Literal["", "ended", "died", "hung", "wrong_numbers", "check_failed", "slow"] = Field(
        "", description="End of the attempt, if the machine may be the cause; empty: the attempt has not ended."
    )
    machines: int = Field(1, ge=1, description="Number of machines of the attempt, any of which may be the cause.")
    slowness: float | None = Field(
        None, gt=0, description="Time of a step, divided by the run's median on like hardware; None: not comparable."
    )
    why: str = Field("", description="The evidence in words.")
