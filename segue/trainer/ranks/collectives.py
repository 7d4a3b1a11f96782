"""The ranks, which are the processes of one attempt, and the collectives with which they agree.

Rank 0 is the leader. Only the leader claims, decides, commits and reports. Small collectives on the CPU send the
leader's decisions to the other ranks, so that no rank waits for an accelerator.
"""

from __future__ import annotations

import logging
import math
import os
import struct
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
import xxhash
from torch.distributed import distributed_c10d

from segue.clock import SystemClock
from segue.errors import RankDriftError
from segue.launch.rendezvous import RANKS_VARIABLE
from segue.records import StopReason
from segue.trainer.ranks.own_time import OwnTime

log = logging.getLogger(__name__)

_kept: set[Any] = set()
"""All process groups of this process. This set keeps the groups alive until the process ends.

DistributedDataParallel's reducer holds a reference to its group. If the reducer held the last reference, the reducer
would destroy the group while it holds Python's lock, and would wait for gloo's threads. A gloo thread that ends a
broken collective also waits for Python's lock, so the process would hang.
"""


class Ranks:
    """The ranks of a process that trains alone. This process is the only rank, and therefore the leader."""

    rank = 0
    count = 1
    own_time: OwnTime | None = None
    """The measurement of this rank's own time in each step; None if there are no other ranks."""
    asks_for_vote: Callable[[], bool] = staticmethod(lambda: True)
    """Whether this rank asks for a vote at the next safe point. Each exchange of step numbers sends the answer."""
    _may_skip_vote = False
    _own_times: tuple[tuple[float, ...], ...] = ()

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def gather(self, data: bytes) -> list[bytes]:
        """Return the data of every rank, in order of rank. Every rank must call this method, with the same number of
        bytes.

        Raises:
            RuntimeError: a rank has ended, or did not answer in time.
        """
        return [data]

    def gather_texts(self, text: str) -> list[str]:
        """Return the text of every rank, in order of rank. Every rank must call this method."""
        data = text.encode()
        lengths = [int.from_bytes(found, "little") for found in self.gather(len(data).to_bytes(8, "little"))]
        found = self.gather(data.ljust(max(lengths), b"\0")) if max(lengths) else [b""] * self.count
        return [padded[:length].decode() for padded, length in zip(found, lengths, strict=True)]

    def leader_decides(self, value: bool) -> bool:
        """Return the value of rank 0 on every rank. Every rank must call this method."""
        return self.gather(bytes([value]))[0] == b"\1"

    def all(self, value: bool) -> bool:
        """Return True if `value` is true on every rank. Every rank must call this method."""
        return all(found == b"\1" for found in self.gather(bytes([value])))

    def first_of(self, text: str) -> str:
        """Return the first text, in order of rank, that is not empty. Every rank must call this method."""
        return next((found for found in self.gather_texts(text) if found), "")

    def note_exchange(self, asks: Sequence[bool], own_seconds: Sequence[float]) -> None:
        """Note what an exchange of step numbers has brought: whether each rank asks for a vote, and the own time of
        each rank that measured its own time."""
        self._may_skip_vote = not any(asks)
        if self.is_leader and own_seconds:
            self._own_times += (tuple(own_seconds),)

    def require_vote(self) -> None:
        """Vote at the next safe point, because time has passed since the exchange. Every rank must call this method
        after the same steps."""
        self._may_skip_vote = False

    def take_own_times(self) -> tuple[tuple[float, ...], ...]:
        """Return the own times of the ranks in each step since the last call, in order of rank. Only the leader keeps
        them."""
        own_times, self._own_times = self._own_times, ()
        return own_times

    def may_skip_vote(self) -> bool:
        """Whether all ranks skip the vote at this safe point. The result is the same on every rank.

        The result is True if no rank has asked for a vote in the newest exchange. Each exchange allows the ranks to
        skip one vote.
        """
        may_skip, self._may_skip_vote = self._may_skip_vote, False
        return may_skip

    def limit_waiting(self, seconds: float) -> None:
        """Set the longest wait of a collective for another rank, in seconds."""

    @property
    def can_break_off(self) -> bool:
        """Whether a second thread can abort the collectives in which this rank waits for other ranks."""
        return False

    def break_off(self) -> None:
        """Abort the collectives that wait for the accelerator of another rank. Calls that wait for aborted collectives
        raise an error.

        The abort itself may take as long as a collective.
        """

    def close(self) -> None:
        """Leave the group of ranks."""


class TorchRanks(Ranks):
    """The ranks of a recipe. torchrun starts these ranks, and they use torch's default process group."""

    def __init__(self, device: torch.device, *, wait_seconds: float) -> None:
        """Wait for the other ranks. `wait_seconds` is the longest wait for a rank, both in this call and in every
        collective."""
        self.rank, self.count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.wait_seconds = wait_seconds
        self._is_on_host = device.type == "cpu"
        self.own_time = OwnTime(device, clock=SystemClock())
        # Without this setting, if one rank fails, NCCL's watchdog ends every healthy rank before any rank can report.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        self._join(device)

    def _join(self, device: torch.device) -> None:
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, timeout=timedelta(seconds=self.wait_seconds))

    def gather(self, data: bytes) -> list[bytes]:
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self.count)]
        self._all_gather(found, mine)
        return [bytes(tensor.numpy()) for tensor in found]

    def _all_gather(self, found: list[torch.Tensor], mine: torch.Tensor) -> None:
        dist.all_gather(found, mine)

    def limit_waiting(self, seconds: float) -> None:
        """Set the limit also for the process groups of the user's code. A process group of the user's code has a
        default limit of half an hour."""
        for group in self._keep_groups():
            distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)

    def _keep_groups(self) -> list[Any]:
        """Keep a reference to every current process group, and return the groups."""
        groups = list(distributed_c10d._world.pg_map)  # torch has no public way to list them.
        _kept.update(groups)
        return groups

    @property
    def can_break_off(self) -> bool:
        # Gloo, which runs on the host, itself notices that a rank has ended. No other thread can end a wait in gloo.
        return not self._is_on_host and dist.is_initialized()

    def break_off(self) -> None:
        try:
            distributed_c10d._abort_process_group()
        except (RuntimeError, ValueError) as error:
            log.warning("could not abort the collectives of this rank reason=%s", error)

    def close(self) -> None:
        if dist.is_initialized():
            self._keep_groups()
            dist.destroy_process_group()


class RanksOfProgram(TorchRanks):
    """The ranks of a program. Segue uses a separate group for these ranks, because the program itself makes and
    destroys torch's default group."""

    def _join(self, device: torch.device) -> None:
        store = distributed_c10d.PrefixStore("segue/ranks", connected(wait_seconds=self.wait_seconds))
        timeout = timedelta(seconds=self.wait_seconds)
        self._group: Any = distributed_c10d.ProcessGroupGloo(store, self.rank, self.count, timeout)

    def limit_waiting(self, seconds: float) -> None:
        super().limit_waiting(seconds)
        self._group._set_default_timeout(timedelta(seconds=seconds))

    def _all_gather(self, found: list[torch.Tensor], mine: torch.Tensor) -> None:
        self._group.allgather([found], [mine]).wait()

    def close(self) -> None:
        # All groups end with the process.
        self._keep_groups()
        _kept.add(self._group)


def is_one_of_several() -> bool:
    """Whether this process is one of several ranks of an attempt."""
    return RANKS_VARIABLE in os.environ


def connected(*, wait_seconds: float) -> Any:
    """Open a separate connection to the key-value store that torchrun hosts for the ranks."""
    return dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=wait_seconds),
    )


FINISHED_ELSEWHERE = "another rank has ended the run"
"""The reason of a rank that ends because the training code on another rank has called `finish`."""
_STOPS = (None, StopReason.FINISHED, StopReason.BOUND, StopReason.NOTICE)
_VOTE = struct.Struct("<B???16sd16s")
_SAME_RELATIVE = 1e-6


class StepNumbers(NamedTuple):
    """The numbers of one step, in full precision."""

    loss: float
    grad_norm: float | None
    """Norm of the gradients; None if not measured. With several ranks, the norm is always measured."""
    param_norm: float | None
    lr: tuple[float, ...]
    loss_scale: float | None


class Vote(NamedTuple):
    """One rank's vote at a safe point. The merged result of all votes is also a `Vote`."""

    stop: StopReason | None = None
    save: bool = False
    is_busy: bool = False
    """Whether no staging buffer is free for a save."""
    waits: bool = False
    """Whether a save is waiting for a staging buffer and must be made at this step."""
    notice: tuple[str, float] | None = None
    """Kind of the notice, and the seconds until the preemption."""
    streams: tuple[str, ...] = ()
    """Hash of the random streams of each rank; empty on a rank that does not publish its streams."""

    def pack(self) -> bytes:
        kind, seconds_left = self.notice or ("", 0.0)
        flags = self.save, self.is_busy, self.waits
        streams = "".join(self.streams).encode()
        return _VOTE.pack(_STOPS.index(self.stop), *flags, kind.encode()[:16], seconds_left, streams)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        stop, save, is_busy, waits, kind, seconds_left, streams = _VOTE.unpack(data)
        name, known = (text.rstrip(b"\0").decode() for text in (kind, streams))
        notice = (name, seconds_left) if name else None
        return cls(_STOPS[stop], save, is_busy, waits, notice, (known,) if known else ())


def merged(votes: Sequence[Vote]) -> Vote:
    """Return the leader's vote, with these exceptions. If any rank has finished, all ranks finish. If any rank has a
    notice, all ranks stop. If any rank is busy, the result is busy.

    If several ranks have a notice, the result has the notice with the least time left.
    """
    leader = votes[0]
    notices = [vote.notice for vote in votes if vote.notice is not None]
    stop = leader.stop
    if any(vote.stop is StopReason.FINISHED for vote in votes):
        stop = StopReason.FINISHED
    elif stop is None and notices:
        stop = StopReason.NOTICE
    return Vote(
        stop=stop,
        save=leader.save and stop is None,
        is_busy=any(vote.is_busy for vote in votes),
        waits=leader.waits and stop is None,
        notice=min(notices, key=lambda notice: notice[1], default=None),
        streams=tuple(known for vote in votes for known in vote.streams),
    )


def agree(ranks: Ranks, vote: Vote) -> Vote:
    """Exchange the votes of all ranks, and return the result. Every rank must call this function at the same safe
    points."""
    if ranks.count == 1:
        return merged([vote])
    return merged([Vote.unpack(data) for data in ranks.gather(vote.pack())])


def combined(
    ranks: Ranks, outcome: StepNumbers, *, weight: float, fingerprints: Sequence[str]
) -> tuple[StepNumbers, tuple[str, ...]]:
    """Combine the numbers and fingerprints of all ranks into the numbers and fingerprints of the whole batch.

    Each rank's loss is the mean over its share of the batch. The combined loss is the mean over the whole
    batch. The losses are summed in the order of the ranks, so that equal shares give equal bits.

    The exchange also sends the own time of each rank, and whether the rank asks for a vote. Most safe points therefore
    need no exchange of their own.

    Raises:
        RankDriftError: gradients or weights differ between ranks after the step.
    """
    if ranks.count == 1:
        return outcome, tuple(fingerprints)
    packing = struct.Struct("<?ddddd" + "16s" * len(fingerprints))
    own_seconds = ranks.own_time.take() if ranks.own_time is not None else 0.0
    numbers = outcome.loss, weight, outcome.grad_norm, outcome.param_norm
    encoded = (each.encode() for each in fingerprints)
    mine = packing.pack(ranks.asks_for_vote(), own_seconds, *numbers, *encoded)
    asks, own_times, *columns = zip(*map(packing.unpack, ranks.gather(mine)), strict=True)
    ranks.note_exchange(asks, tuple(filter(None, own_times)))
    shares = list(zip(*columns, strict=True))
    _refuse_drift(shares)
    used = [share for share in shares if share[1]]
    whole = sum(share[0] * share[1] for share in used) / ranks.count
    return outcome._replace(loss=whole), tuple(map(_one_of, *(share[4:] for share in used)))


def _one_of(*fingerprints: bytes) -> str:
    """Combine several fingerprints into one; empty if there are none."""
    seen = b"".join(fingerprints)
    return xxhash.xxh3_64_hexdigest(seen) if any(seen) else ""


def _refuse_drift(shares: Sequence[tuple[Any, ...]]) -> None:
    for channel, at in (("gradient", 2), ("parameter", 3)):
        leads = shares[0][at]
        for rank, share in enumerate(shares):
            both_nan = math.isnan(leads) and math.isnan(share[at])
            if not both_nan and not math.isclose(leads, share[at], rel_tol=_SAME_RELATIVE):
                raise RankDriftError(rank=rank, channel=channel, here=share[at], leads=leads)
