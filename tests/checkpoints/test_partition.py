"""Which rank stores what, and how slices become whole tensors again."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segue.checkpoints.format.layout import TensorSlice
from segue.checkpoints.format.names import is_of_rank, of_rank, slice_name
from segue.checkpoints.loading.snapshot import read_checkpoint, whole_tensors
from segue.checkpoints.saving.partition import Partition, RankState
from segue.checkpoints.saving.ranked_writer import merged
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.checkpoints.saving.written import Save
from segue.errors import MalformedCheckpointError
from segue.stores import LocalStore
from tests.support.manifests import manifest_of


def is_alike(name):
    return name.startswith(("model.state.w", "optimizer."))


def state_of(rank, sizes):
    """What one rank holds: parameters that all have alike, a buffer, something extra, and streams of its own."""
    live = {f"model.state.w{number}": torch.zeros(size) for number, size in enumerate(sizes)}
    live |= {f"optimizer.state.{number}.m": torch.zeros(size) for number, size in enumerate(sizes)}
    live |= {"model.state.running_mean": torch.zeros(3), "extra.average.v": torch.zeros(5)}
    stream = of_rank("rng.torch", rank)
    live[stream] = torch.zeros(7)
    return live, {"model": {}, "optimizer": {}, "extra.average": {}, "progress": {}, stream: {}}


def states_of_ranks(count, sizes):
    return [Partition(rank, count, is_same_everywhere=is_alike).of(*state_of(rank, sizes)) for rank in range(count)]


SIZES = st.lists(st.integers(0, 2000), min_size=1, max_size=12)


@given(count=st.integers(1, 5), sizes=SIZES)
def test_everything_is_stored_exactly_once(count, sizes):
    states = states_of_ranks(count, sizes)
    stored = [name for state in states for name in state.tensors]
    everything = {name for rank in range(count) for name in state_of(rank, sizes)[0]}
    assert sorted(stored) == sorted(everything)
    assert {name for state in states for name in state.skeletons} == {
        name for rank in range(count) for name in state_of(rank, sizes)[1]
    }


@given(count=st.integers(2, 5), sizes=SIZES)
def test_what_differs_by_rank_is_rank_0s_and_streams_are_each_ranks_own(count, sizes):
    first, *others = states_of_ranks(count, sizes)
    assert {"model.state.running_mean", "extra.average.v", "rng.torch"} <= first.tensors.keys()
    assert "progress" in first.skeletons
    for rank, state in enumerate(others, start=1):
        assert {name for name in state.tensors if not is_alike(name)} == {of_rank("rng.torch", rank)}


@given(count=st.integers(1, 5), sizes=SIZES)
def test_the_load_is_spread_by_bytes_to_within_one_tensor(count, sizes):
    states = states_of_ranks(count, sizes)
    loads = [sum(t.nbytes for name, t in state.tensors.items() if is_alike(name)) for state in states]
    assert max(loads) - min(loads) <= 4 * max(sizes)


def test_every_rank_comes_to_the_same_partition_in_whatever_order_it_holds_its_tensors():
    live, skeletons = state_of(1, range(1, 9))
    backwards = dict(reversed(live.items()))
    one, other = (Partition(1, 3, is_same_everywhere=is_alike).of(held, skeletons) for held in (live, backwards))
    assert one.tensors.keys() == other.tensors.keys()
    assert one.partition_hash == other.partition_hash


def test_ranks_that_hold_different_tensors_have_different_partition_hashes():
    hashes = [state.partition_hash for state in states_of_ranks(3, [4, 5])]
    assert hashes == [hashes[0]] * 3
    assert states_of_ranks(3, [4, 6])[1].partition_hash != hashes[0]
    assert states_of_ranks(3, [4])[1].partition_hash != hashes[0]


def test_a_state_that_has_grown_is_partitioned_again():
    partition = Partition(0, 2, is_same_everywhere=is_alike)
    before = partition.of(*state_of(0, [4]))
    live, skeletons = state_of(0, [4, 9, 9])
    after = partition.of(live, skeletons)
    other = Partition(1, 2, is_same_everywhere=is_alike).of(*state_of(1, [4, 9, 9]))
    assert before.tensors.keys() != after.tensors.keys()
    assert live.keys() <= after.tensors.keys() | other.tensors.keys()


def test_one_rank_alone_stores_what_it_was_given():
    live, skeletons = state_of(0, [3, 4])
    assert Partition().of(live, skeletons) == RankState(live, skeletons)


@pytest.mark.parametrize(
    ("name", "rank", "is_its_own"),
    [
        ("rng.torch@1", 1, True),
        ("rng.python@1.words", 1, True),
        ("rng.torch@1", 2, False),
        ("rng.torch@12", 1, False),
        ("rng.torch@2", 12, False),
        ("rng.torch", 0, False),
        ("rng.torch@1", 0, False),
        ("model.state.w", 1, False),
    ],
)
def test_a_ranks_own_components_are_known_by_their_names(name, rank, is_its_own):
    assert is_of_rank(name, rank) is is_its_own


@st.composite
def grids(draw):
    """A tensor of up to three dimensions and where it is cut along each of them."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    return tuple(shape), [sorted({0, *draw(st.sets(st.integers(1, size), max_size=2)), size}) for size in shape]


def cut(whole, cuts, name="w"):
    """All slices of a grid, by name."""
    tensors, slices = {}, {}
    for sides in itertools.product(*(itertools.pairwise(edges) for edges in cuts)):
        one = TensorSlice(name, tuple(whole.shape), tuple(start for start, _ in sides))
        tensors[slice_name(one)] = whole[tuple(slice(*side) for side in sides)]
        slices[slice_name(one)] = one
    return tensors, slices


@given(grids())
def test_a_tensor_cut_along_any_grid_is_assembled_again(grid):
    shape, cuts = grid
    whole = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    tensors, slices = cut(whole, cuts)
    (found,) = whole_tensors(tensors, slices).values()
    assert torch.equal(found, whole)


@given(grids(), st.data())
def test_a_tensor_of_which_any_slice_is_absent_doubled_or_moved_is_refused(grid, data):
    shape, cuts = grid
    tensors, slices = cut(torch.zeros(shape), cuts)
    name = data.draw(st.sampled_from(sorted(slices)))
    harm = data.draw(st.sampled_from(["absent", "doubled", "moved"]))
    if harm == "absent":
        del slices[name], tensors[name]
    if harm == "doubled":
        slices["again"], tensors["again"] = slices[name], tensors[name]
    if harm == "moved":
        offsets = slices[name].offsets
        slices[name] = slices[name]._replace(offsets=(offsets[0] + 1, *offsets[1:]))
    if not slices:
        slices["w@0"], tensors["w@0"] = TensorSlice("w", shape, (0,) * len(shape)), torch.zeros((0,) * len(shape))
    with pytest.raises(MalformedCheckpointError, match="tensor w cannot be assembled"):
        whole_tensors(tensors, slices)


PLACED = {"a": TensorSlice("w", (4,), (0,)), "b": TensorSlice("w", (4,), (2,))}
TWOS = {"a": torch.zeros(2), "b": torch.zeros(2)}


@pytest.mark.parametrize(
    ("tensors", "slices", "why"),
    [
        (TWOS, PLACED | {"b": TensorSlice("w", (4,), (1,))}, "overlap"),
        (TWOS | {"b": torch.zeros(1)}, PLACED, "gap"),
        (TWOS | {"b": torch.zeros(3)}, PLACED, "outside"),
        (TWOS, PLACED | {"b": TensorSlice("w", (5,), (2,))}, "slices disagree"),
        (TWOS | {"b": torch.zeros(2, dtype=torch.int32)}, PLACED, "slices disagree"),
        (TWOS | {"b": torch.zeros(2, 1)}, PLACED, "slices disagree"),
        (TWOS | {"w": torch.zeros(4)}, PLACED, "both whole and in slices"),
        ({"a": torch.zeros(2)}, PLACED, "its slice b is missing"),
    ],
)
def test_slices_that_are_not_one_tensor_are_refused_and_the_tensor_named(tensors, slices, why):
    with pytest.raises(MalformedCheckpointError, match=f"tensor w.*{why}"):
        whole_tensors(tensors, slices)


def test_the_smallest_harmless_case_is_assembled():
    assert whole_tensors(TWOS | {"other": torch.ones(1)}, PLACED).keys() == {"other", "w"}


class Halves(Partition):
    """Stores the vector of four in two slices, and claims of them what it was given."""

    def __init__(self, claimed):
        super().__init__()
        self._claimed = claimed

    def of(self, live, skeletons):
        whole = live["model.w"]
        return RankState({"model.w@0": whole[:2], "model.w@2": whole[2:]}, dict(skeletons), self._claimed)


def read_back(folder, claimed):
    store = LocalStore(folder).create()
    staged = StagingArea(partition=Halves(claimed)).take({"model": {"w": torch.arange(4.0)}})
    written = InlineWriter([store]).write(staged, Save("run", "seg000-a1-e1", 3))
    return read_checkpoint(store, run_id="run", manifest=manifest_of(written, 3))


FIRST, SECOND = ("model.w", (4,), (0,)), ("model.w", (4,), (2,))


def test_slices_in_an_index_are_read_back_as_one_tensor(tmp_path):
    snapshot = read_back(tmp_path, {"model.w@0": FIRST, "model.w@2": SECOND})
    assert snapshot.tensors["model.w"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(("model.w", (4,), (-2,)), id="a negative offset"),
        pytest.param(("model.w", (-4,), (2,)), id="a negative size"),
        pytest.param(("model.w", (4,), (2.0,)), id="a broken number"),
        pytest.param(("model.w", (4,), (True,)), id="a truth value"),
        pytest.param(("model.w", (4,), ("2",)), id="a text"),
        pytest.param(("model.w", (4, 1), (2,)), id="another number of sizes"),
        pytest.param(("model.w", (4, 1), (2, 0)), id="another number of dimensions"),
        pytest.param(("model.w", (2**62,), (2,)), id="an absurd size"),
        pytest.param(("model.w", None, (2,)), id="no size"),
        pytest.param(("model.w", (4,)), id="no offset"),
        pytest.param(("model.w", (4,), (2,), 0), id="too much"),
        pytest.param((5, (4,), (2,)), id="a number for a name"),
        pytest.param((["model.w"], (4,), (2,)), id="a list for a name"),
        pytest.param((None, (4,), (2,)), id="no name"),
        pytest.param(7, id="no slice at all"),
        pytest.param(("another", (4,), (2,)), id="a slice of something else"),
    ],
)
def test_an_index_with_hostile_slices_is_refused(tmp_path, second):
    with pytest.raises(MalformedCheckpointError):
        read_back(tmp_path, {"model.w@0": FIRST, "model.w@2": second})


def test_an_index_may_not_hide_a_tensor_behind_a_slice_of_itself(tmp_path):
    with pytest.raises(MalformedCheckpointError):
        read_back(tmp_path, {"model.w@0": ("model.w@2", (2,), (0,)), "model.w@2": SECOND})


def test_a_number_for_a_name_in_both_slices_is_refused_too(tmp_path):
    with pytest.raises(MalformedCheckpointError):
        read_back(tmp_path, {"model.w@0": (5, (4,), (0,)), "model.w@2": (5, (4,), (2,))})


def written(store, rank, values):
    staged = StagingArea().take({f"rank{rank}": {"w": torch.tensor(values)}})
    return InlineWriter([store], rank=rank).write(staged, Save("run", "seg000-a1-e1", 3))


def test_a_manifest_of_all_ranks_names_every_shard_and_component(tmp_path):
    store = LocalStore(tmp_path).create()
    by_rank = [written(store, rank, [float(rank)]) for rank in range(3)]
    whole = merged(by_rank)
    assert [shard.key.rsplit("/")[-1] for shard in whole.shards] == [
        f"rank-{rank}.{ending}" for rank in range(3) for ending in ("safetensors", "json")
    ]
    assert whole.components.keys() == {"rank0", "rank1", "rank2"}
    assert whole.tensor_count == 3
    assert whole.new_bytes == sum(one.new_bytes for one in by_rank)
    snapshot = read_checkpoint(store, run_id="run", manifest=manifest_of(whole, 3))
    assert {name: tensor.tolist() for name, tensor in snapshot.tensors.items()} == {
        f"rank{rank}.w": [float(rank)] for rank in range(3)
    }


def test_the_digest_of_a_component_changes_with_any_ranks_share_of_it(tmp_path):
    store = LocalStore(tmp_path).create()
    one, other, third = (written(store, 0, [value]) for value in (1.0, 2.0, 3.0))
    digests = [merged(by_rank).components["rank0"] for by_rank in ([one, other], [one, third], [other, one])]
    assert len(set(digests)) == 3


def test_without_one_ranks_shard_there_is_no_checkpoint(tmp_path):
    assert merged([written(LocalStore(tmp_path).create(), 0, [1.0]), None]) is None
