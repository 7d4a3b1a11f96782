"""What ranks agree on, as tables: words, losses put together, and whose fault an end is."""

from __future__ import annotations

import math

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from segue.errors import HungRankError, RankDriftError, RankFailedError, RankLostError
from segue.records import StopReason
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.ranks.consensus import Word, agree, merged, put_together
from segue.trainer.ranks.failures import RankEnding, cause_of, is_broken_collective
from segue.trainer.step import Outcome

FINISHED, BOUND, NOTICE = StopReason.FINISHED, StopReason.BOUND, StopReason.NOTICE
QUIET = Word()


class Heard(Ranks):
    """One rank to which the others have said something already."""

    def __init__(self, *others: bytes) -> None:
        self._others = others
        self.count = 1 + len(others)

    def gather(self, data: bytes) -> list[bytes]:
        return [data, *self._others]


@pytest.mark.parametrize(
    ("words", "agreed"),
    [
        pytest.param([QUIET, QUIET], QUIET, id="nothing to say"),
        pytest.param([Word(save=True), QUIET], Word(save=True), id="the leader saves"),
        pytest.param([QUIET, Word(save=True)], QUIET, id="only the leader decides to save"),
        pytest.param([QUIET, Word(stop=FINISHED)], QUIET, id="only the leader decides to stop"),
        pytest.param([Word(stop=BOUND), QUIET], Word(stop=BOUND), id="the leader stops"),
        pytest.param([Word(stop=FINISHED, save=True), QUIET], Word(stop=FINISHED), id="who stops does not save here"),
        pytest.param(
            [Word(save=True), QUIET, Word(is_busy=True)], Word(save=True, is_busy=True), id="one without room"
        ),
        pytest.param(
            [Word(save=True), Word(notice=("sigterm", 25.0))],
            Word(stop=NOTICE, notice=("sigterm", 25.0)),
            id="a notice anywhere stops all, and comes before a save",
        ),
        pytest.param(
            [Word(stop=BOUND, notice=("recall", 3600.0)), Word(notice=("sigterm", 25.0))],
            Word(stop=BOUND, notice=("sigterm", 25.0)),
            id="the leader's reason stands, the least time counts",
        ),
        pytest.param(
            [Word(stop=FINISHED), Word(notice=("file", 9.0))],
            Word(stop=FINISHED, notice=("file", 9.0)),
            id="a run that is finished is not stopped by a notice",
        ),
    ],
)
def test_many_words_become_one(words, agreed):
    assert merged(words) == agreed
    first, *others = words
    assert agree(Heard(*(word.pack() for word in others)), first) == agreed


@given(
    stop=st.sampled_from([None, FINISHED, BOUND, NOTICE]),
    save=st.booleans(),
    is_busy=st.booleans(),
    notice=st.none()
    | st.tuples(st.sampled_from(["sigterm", "sigint", "file", "recall", "orphaned"]), st.floats(allow_nan=False)),
)
def test_a_word_comes_back_from_its_bytes_and_all_have_as_many(stop, save, is_busy, notice):
    word = Word(stop, save, is_busy, notice)
    assert Word.unpack(word.pack()) == word
    assert len(word.pack()) == len(QUIET.pack())


def outcome_of(loss, *, grad_norm=2.0, param_norm=3.0):
    return Outcome(loss=loss, grad_norm=grad_norm, param_norm=param_norm, lr=(0.1,), loss_scale=None)


def share_of(loss, weight, fingerprint, **norms):
    """What a rank says after a step, as it travels."""
    said = []

    class Recorded(Ranks):
        count = 2

        def gather(self, data: bytes) -> list[bytes]:
            said.append(data)
            return [data, data]

    put_together(Recorded(), outcome_of(loss, **norms), weight=weight, fingerprint=fingerprint)
    return said[0]


def test_the_loss_of_all_is_the_mean_over_the_samples_not_over_the_ranks():
    """Ten samples on three ranks: 3, 3 and 4 of them, so that weights are 0.9, 0.9 and 1.2."""
    ranks = Heard(share_of(2.0, 0.9, "b" * 16), share_of(4.0, 1.2, "c" * 16))
    outcome, _ = put_together(ranks, outcome_of(1.0), weight=0.9, fingerprint="a" * 16)
    assert math.isclose(outcome.loss, (3 * 1.0 + 3 * 2.0 + 4 * 4.0) / 10)


def test_a_rank_without_samples_counts_for_nothing_even_where_its_loss_is_nan():
    ranks = Heard(share_of(3.0, 2.0, "b" * 16))
    outcome, mark = put_together(ranks, outcome_of(math.nan), weight=0.0, fingerprint="a" * 16)
    _, other = put_together(ranks, outcome_of(0.5), weight=0.0, fingerprint="c" * 16)
    assert outcome.loss == 3.0
    assert mark == other


def test_what_each_rank_saw_and_which_rank_saw_it_is_in_the_hash_of_the_whole_batch():
    def mark(first, second):
        ranks = Heard(share_of(1.0, 1.0, second))
        return put_together(ranks, outcome_of(1.0), weight=1.0, fingerprint=first)[1]

    a, b, c = "a" * 16, "b" * 16, "c" * 16
    assert len({mark(a, b), mark(b, a), mark(a, c), mark(c, b)}) == 4


def test_one_rank_alone_has_the_last_word():
    outcome = outcome_of(0.1)
    assert put_together(Ranks(), outcome, weight=1.0, fingerprint="mine") == (outcome, "mine")


@pytest.mark.parametrize("norms", [{"grad_norm": 2.001}, {"param_norm": 3.001}, {"grad_norm": math.nan}])
def test_ranks_whose_weights_or_gradients_are_not_the_same_are_stopped(norms):
    ranks = Heard(share_of(1.0, 1.0, "b" * 16, **norms))
    with pytest.raises(RankDriftError, match="of rank 1"):
        put_together(ranks, outcome_of(1.0), weight=1.0, fingerprint="a" * 16)


def test_ranks_that_all_overflow_are_not_taken_for_different():
    ranks = Heard(share_of(1.0, 1.0, "b" * 16, grad_norm=math.nan))
    outcome, _ = put_together(ranks, outcome_of(1.0, grad_norm=math.nan), weight=1.0, fingerprint="a" * 16)
    assert outcome.loss == 1.0


def test_what_a_recipe_makes_of_a_broken_collective_is_still_no_cause():
    passed_on = ValueError("my step went wrong")
    passed_on.__cause__ = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    assert is_broken_collective(passed_on)
    assert not is_broken_collective(ValueError("mine alone"))


@given(st.lists(st.text(max_size=40), min_size=1, max_size=5))
def test_texts_of_any_length_are_gathered_whole(texts):
    own, *others = (text.encode() for text in texts)
    longest = max(map(len, (own, *others)))

    class Asked(Ranks):
        count = len(texts)

        def gather(self, data: bytes) -> list[bytes]:
            if len(data) == 8 and data == len(own).to_bytes(8, "little") and not self.knows_lengths:
                self.knows_lengths = True
                return [data, *(len(other).to_bytes(8, "little") for other in others)]
            assert len(data) == longest
            return [data, *(other.ljust(longest, b"\0") for other in others)]

    ranks = Asked()
    ranks.knows_lengths = False
    assert ranks.gather_texts(texts[0]) == texts


def ending(rank, *, order=1, is_cause=True, is_code=True, message="told to"):
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
    ("said", "hung", "gone", "kind", "ranks"),
    [
        pytest.param([noticed(0), ending(1)], (), (), RankFailedError, (1,), id="one raised"),
        pytest.param([ending(0, order=2), ending(2, order=1)], (), (), RankFailedError, (2,), id="who raised first"),
        pytest.param([noticed(0), ending(1, is_code=False)], (), (), RankLostError, (1,), id="a store failed there"),
        pytest.param([noticed(0), noticed(1)], (2,), (2,), HungRankError, (2,), id="one lives and says nothing"),
        pytest.param([noticed(0)], (1, 2), (1, 2), HungRankError, (1, 2), id="two live and say nothing"),
        pytest.param([noticed(0)], (), (1,), RankLostError, (1,), id="one is dead"),
        pytest.param([noticed(0)], (1,), (1, 2), RankLostError, (2,), id="one hangs because another is dead"),
        pytest.param([noticed(0), ending(1)], (2,), (2,), RankFailedError, (1,), id="one hangs because another raised"),
        pytest.param([noticed(0, 2), noticed(1, 1)], (), (), RankLostError, (1,), id="all only lost touch"),
    ],
)
def test_an_end_is_the_fault_of_the_rank_that_caused_it(said, hung, gone, kind, ranks):
    error = cause_of({one.rank: one for one in said}, hung=hung, gone=gone, waited_seconds=300, step=7)
    assert type(error) is kind
    assert ((error.rank,) if kind is RankFailedError else error.ranks) == ranks
    assert ", ".join(map(str, ranks)) in str(error)


def test_the_recipe_that_raised_elsewhere_is_told_with_its_own_traceback():
    error = cause_of({1: ending(1)}, hung=(), gone=(), waited_seconds=300, step=7)
    assert (error.rank, error.traceback, error.message) == (1, "Traceback of rank 1", "told to")


@pytest.mark.parametrize(
    ("error", "is_broken"),
    [
        (dist.DistBackendError("timed out"), True),
        (dist.DistNetworkError("connection reset"), True),
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ArithmeticError("told to raise here"), False),
        (KeyError("gloo"), False),
    ],
)
def test_only_an_error_of_communication_says_nothing_about_its_own_rank(error, is_broken):
    assert is_broken_collective(error) is is_broken
