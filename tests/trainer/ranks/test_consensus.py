"""Consensus of ranks, as tables: votes, combined losses, and the cause of an end."""

from __future__ import annotations

import math

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.errors import HungRankError, RankDriftError, RankFailedError, RankLostError
from segue.records import StopReason
from segue.trainer.ranks.collectives import Ranks, StepNumbers, Vote, agree, combined, merged
from segue.trainer.ranks.rank_failures import RankEnding, cause_of, is_broken_collective

FINISHED, BOUND, NOTICE = StopReason.FINISHED, StopReason.BOUND, StopReason.NOTICE
NO_VOTE = Vote()


class AnsweredRanks(Ranks):
    """One rank, with given answers of the others."""

    def __init__(self, *others: bytes) -> None:
        self._others = others
        self.count = 1 + len(others)

    def gather(self, data: bytes) -> list[bytes]:
        return [data, *self._others]


@pytest.mark.parametrize(
    ("votes", "agreed"),
    [
        pytest.param([NO_VOTE, NO_VOTE], NO_VOTE, id="nothing to do"),
        pytest.param([Vote(save=True), NO_VOTE], Vote(save=True), id="the leader saves"),
        pytest.param([NO_VOTE, Vote(save=True)], NO_VOTE, id="only the leader decides to save"),
        pytest.param([NO_VOTE, Vote(stop=FINISHED)], Vote(stop=FINISHED), id="a rank that has finished ends the run"),
        pytest.param([NO_VOTE, Vote(stop=BOUND)], NO_VOTE, id="only the leader decides to stop before the end"),
        pytest.param(
            [Vote(stop=NOTICE, notice=("file", 9.0)), Vote(stop=FINISHED)],
            Vote(stop=FINISHED, notice=("file", 9.0)),
            id="the end of the run comes before a notice",
        ),
        pytest.param([Vote(stop=BOUND), NO_VOTE], Vote(stop=BOUND), id="the leader stops"),
        pytest.param([Vote(stop=FINISHED, save=True), NO_VOTE], Vote(stop=FINISHED), id="a stop comes before a save"),
        pytest.param(
            [Vote(save=True), NO_VOTE, Vote(is_busy=True)], Vote(save=True, is_busy=True), id="one without room"
        ),
        pytest.param(
            [Vote(save=True, waits=True), Vote(is_busy=True)],
            Vote(save=True, is_busy=True, waits=True),
            id="the leader waits for one without room",
        ),
        pytest.param(
            [Vote(save=True), Vote(notice=("sigterm", 25.0))],
            Vote(stop=NOTICE, notice=("sigterm", 25.0)),
            id="a notice anywhere stops all, and comes before a save",
        ),
        pytest.param(
            [Vote(stop=BOUND, notice=("recall", 3600.0)), Vote(notice=("sigterm", 25.0))],
            Vote(stop=BOUND, notice=("sigterm", 25.0)),
            id="the leader's reason remains, the least time counts",
        ),
        pytest.param(
            [Vote(stop=FINISHED), Vote(notice=("file", 9.0))],
            Vote(stop=FINISHED, notice=("file", 9.0)),
            id="a run that is finished is not stopped by a notice",
        ),
    ],
)
def test_the_votes_of_all_ranks_give_one_result(votes, agreed):
    assert merged(votes) == agreed
    first, *others = votes
    assert agree(AnsweredRanks(*(vote.pack() for vote in others)), first) == agreed


@pytest.mark.matrix
@given(
    stop=st.sampled_from([None, FINISHED, BOUND, NOTICE]),
    save=st.booleans(),
    is_busy=st.booleans(),
    waits=st.booleans(),
    notice=st.none()
    | st.tuples(
        st.sampled_from(["sigterm", "sigint", "sigusr1", "file", "recall", "orphaned", "aws", "gce", "azure"]),
        st.floats(allow_nan=False),
    ),
)
def test_a_vote_is_read_back_from_its_bytes_and_all_votes_have_the_same_size(stop, save, is_busy, waits, notice):
    vote = Vote(stop, save, is_busy, waits, notice)
    assert Vote.unpack(vote.pack()) == vote
    assert len(vote.pack()) == len(NO_VOTE.pack())


def outcome_of(loss, *, grad_norm=2.0, param_norm=3.0):
    return StepNumbers(loss=loss, grad_norm=grad_norm, param_norm=param_norm, lr=(0.1,), loss_scale=None)


def share_of(loss, weight, fingerprint, **norms):
    """The bytes that a rank sends after a step."""
    sent = []

    class Recorded(Ranks):
        count = 2

        def gather(self, data: bytes) -> list[bytes]:
            sent.append(data)
            return [data, data]

    combined(Recorded(), outcome_of(loss, **norms), weight=weight, fingerprints=(fingerprint,))
    return sent[0]


def test_the_combined_loss_is_the_mean_over_the_samples_not_over_the_ranks():
    """Ten samples on three ranks: 3, 3 and 4 of them, so that weights are 0.9, 0.9 and 1.2."""
    ranks = AnsweredRanks(share_of(2.0, 0.9, "b" * 16), share_of(4.0, 1.2, "c" * 16))
    outcome, _ = combined(ranks, outcome_of(1.0), weight=0.9, fingerprints=("a" * 16,))
    assert math.isclose(outcome.loss, (3 * 1.0 + 3 * 2.0 + 4 * 4.0) / 10)


def test_a_rank_without_samples_has_no_influence_even_where_its_loss_is_nan():
    ranks = AnsweredRanks(share_of(3.0, 2.0, "b" * 16))
    outcome, fingerprint = combined(ranks, outcome_of(math.nan), weight=0.0, fingerprints=("a" * 16,))
    _, other = combined(ranks, outcome_of(0.5), weight=0.0, fingerprints=("c" * 16,))
    assert outcome.loss == 3.0
    assert fingerprint == other


def test_the_fingerprint_of_the_batch_depends_on_each_ranks_share_and_their_order():
    def fingerprint_of(first, second):
        ranks = AnsweredRanks(share_of(1.0, 1.0, second))
        return combined(ranks, outcome_of(1.0), weight=1.0, fingerprints=(first,))[1]

    a, b, c = "a" * 16, "b" * 16, "c" * 16
    assert len({fingerprint_of(a, b), fingerprint_of(b, a), fingerprint_of(a, c), fingerprint_of(c, b)}) == 4


def test_the_outcome_of_a_single_rank_does_not_change():
    outcome = outcome_of(0.1)
    assert combined(Ranks(), outcome, weight=1.0, fingerprints=("mine",)) == (outcome, ("mine",))


@pytest.mark.parametrize("norms", [{"grad_norm": 2.001}, {"param_norm": 3.001}, {"grad_norm": math.nan}])
def test_ranks_whose_weights_or_gradients_are_not_the_same_are_stopped(norms):
    ranks = AnsweredRanks(share_of(1.0, 1.0, "b" * 16, **norms))
    with pytest.raises(RankDriftError, match="on rank 1"):
        combined(ranks, outcome_of(1.0), weight=1.0, fingerprints=("a" * 16,))


def test_ranks_that_all_overflow_are_not_taken_for_different():
    ranks = AnsweredRanks(share_of(1.0, 1.0, "b" * 16, grad_norm=math.nan))
    outcome, _ = combined(ranks, outcome_of(1.0, grad_norm=math.nan), weight=1.0, fingerprints=("a" * 16,))
    assert outcome.loss == 1.0


def test_a_broken_collective_that_a_recipe_re_raised_is_no_cause():
    passed_on = ValueError("my step went wrong")
    passed_on.__cause__ = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    assert is_broken_collective(passed_on)
    assert not is_broken_collective(ValueError("mine alone"))


@settings(max_examples=30)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=5))
def test_texts_of_any_length_are_gathered_complete(texts):
    own, *others = (text.encode() for text in texts)
    longest = max(map(len, (own, *others)))

    class PaddedRanks(Ranks):
        count = len(texts)

        def gather(self, data: bytes) -> list[bytes]:
            if len(data) == 8 and data == len(own).to_bytes(8, "little") and not self.knows_lengths:
                self.knows_lengths = True
                return [data, *(len(other).to_bytes(8, "little") for other in others)]
            assert len(data) == longest
            return [data, *(other.ljust(longest, b"\0") for other in others)]

    ranks = PaddedRanks()
    ranks.knows_lengths = False
    assert ranks.gather_texts(texts[0]) == texts


def ending(rank, *, order=1, is_cause=True, is_code=True, message="raised here"):
    return RankEnding(
        rank=rank,
        order=order,
        is_cause=is_cause,
        is_code=is_code,
        type_name="ArithmeticError",
        message=message,
        traceback=f"Traceback of rank {rank}",
    )


def noticed(rank, order=2):
    return ending(rank, order=order, is_cause=False, is_code=True, message="gloo: closed by peer")


@pytest.mark.parametrize(
    ("endings", "hung", "silent", "kind", "ranks"),
    [
        pytest.param([noticed(0), ending(1)], (), (), RankFailedError, (1,), id="one raised"),
        pytest.param(
            [ending(0, order=2), ending(2, order=1)], (), (), RankFailedError, (2,), id="the first that raised"
        ),
        pytest.param([noticed(0), ending(1, is_code=False)], (), (), RankLostError, (1,), id="a store failed there"),
        pytest.param([noticed(0), noticed(1)], (2,), (2,), HungRankError, (2,), id="one is alive and silent"),
        pytest.param([noticed(0)], (1, 2), (1, 2), HungRankError, (1, 2), id="two are alive and silent"),
        pytest.param([noticed(0)], (), (1,), RankLostError, (1,), id="one is dead"),
        pytest.param([noticed(0)], (1,), (1, 2), RankLostError, (2,), id="one hangs because another is dead"),
        pytest.param([noticed(0), ending(1)], (2,), (2,), RankFailedError, (1,), id="one hangs because another raised"),
        pytest.param([noticed(0, 2), noticed(1, 1)], (), (), RankLostError, (1,), id="all only lost contact"),
    ],
)
def test_the_error_names_the_rank_that_caused_the_end(endings, hung, silent, kind, ranks):
    error = cause_of({one.rank: one for one in endings}, hung=hung, silent=silent, waited_seconds=300, step=7)
    assert type(error) is kind
    assert ((error.rank,) if kind is RankFailedError else error.ranks) == ranks
    assert ", ".join(map(str, ranks)) in str(error)


def test_a_recipe_that_raised_on_another_rank_is_reported_with_its_own_traceback():
    error = cause_of({1: ending(1)}, hung=(), silent=(), waited_seconds=300, step=7)
    assert (error.rank, error.traceback, error.message) == (1, "Traceback of rank 1", "raised here")


@pytest.mark.parametrize(
    ("error", "is_broken"),
    [
        (dist.DistBackendError("timed out"), True),
        (dist.DistNetworkError("connection reset"), True),
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ArithmeticError("raised here"), False),
        (KeyError("gloo"), False),
    ],
)
def test_only_an_error_of_communication_is_a_broken_collective(error, is_broken):
    assert is_broken_collective(error) is is_broken


class Measured:
    """An own time that was measured before."""

    def __init__(self, own_seconds: float) -> None:
        self._own_seconds = own_seconds

    def take(self) -> float:
        return self._own_seconds


def exchanged(*ranks: tuple[bool, float]) -> Ranks:
    """The first of these ranks after an exchange of numbers. Each rank is given by whether it asks for a vote, and by
    its own time."""
    sent = []

    class Exchanging(Ranks):
        count = len(ranks)

        def __init__(self, asks: bool, own_seconds: float) -> None:
            self.asks_for_vote, self.own_time = lambda: asks, Measured(own_seconds)

        def gather(self, data: bytes) -> list[bytes]:
            sent.append(data)
            return sent[::-1] if len(sent) == self.count else [data] * self.count

    for asks, own_seconds in reversed(ranks):
        rank = Exchanging(asks, own_seconds)
        combined(rank, outcome_of(1.0), weight=1.0, fingerprints=("a" * 16,))
    return rank


@pytest.mark.parametrize(
    ("asks", "may_skip"),
    [((False, False), True), ((True, False), False), ((False, True), False), ((False, False, True), False)],
)
def test_a_vote_is_skipped_once_if_no_rank_has_asked_for_it_in_the_exchange_of_numbers(asks, may_skip):
    rank = exchanged(*((each, 0.0) for each in asks))
    assert rank.may_skip_vote() is may_skip
    assert not rank.may_skip_vote(), "each exchange allows one skip"


def test_no_vote_is_skipped_before_the_first_exchange_of_numbers():
    assert not Ranks().may_skip_vote()


def test_the_leader_has_the_own_times_of_the_ranks_that_measured_one():
    rank = exchanged((False, 0.01), (False, 0.02), (False, 0.0), (False, 0.03))
    assert rank.take_own_times() == ((0.01, 0.02, 0.03),)
    assert rank.take_own_times() == ()
