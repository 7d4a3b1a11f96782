"""Whether the ranks on other machines are there: nothing is known of their processes."""

from __future__ import annotations

import os

import pytest

from segue.process import ProcessRef
from segue.trainer.ranks import exchange
from segue.trainer.ranks.exchange import SILENT_READINGS, Presence
from tests.trainer.ranks.test_unanswered import DictNotes

ELSEWHERE = "another-boot pid:[1]"


@pytest.fixture
def notes():
    return DictNotes()


@pytest.fixture
def own(notes):
    """What rank 0 knows; ranks 1 and 2 are on another machine, with the id of this process."""
    found = Presence(notes, rank=0, count=3)
    for rank in (1, 2):
        notes.put(f"process/{rank}", f"{ProcessRef.this()}\n{ELSEWHERE}")
        notes.put(f"beat/{rank}", "0")
    return found


def read(own, notes, times):
    """Look until the counters were read so many times."""
    for _ in range(times * exchange._LOOKS_PER_READING):
        own.look(notes)


def test_a_machine_is_there_as_long_as_the_counter_of_one_of_its_ranks_changes(own, notes):
    for number in range(1, 5):
        notes.put("beat/1", str(number))
        read(own, notes, SILENT_READINGS)
        assert own.is_alive(1, notes)
        assert own.is_alive(2, notes)
    read(own, notes, 1)
    assert not own.is_alive(1, notes)
    assert not own.is_alive(2, notes), "torchrun ends the ranks of a machine together"
    notes.put("beat/1", "5")
    read(own, notes, 1)
    assert own.is_alive(1, notes)


def test_a_rank_whose_watchdog_does_not_run_yet_is_waited_for(own, notes):
    read(own, notes, 3 * SILENT_READINGS)
    assert own.is_alive(1, notes)
    assert own.is_alive(3, notes), "it has not even shown itself"


def test_the_counters_of_other_machines_are_read_once_in_a_while_and_only_one_of_each(own, notes):
    asked = []
    notes.get = lambda key: asked.append(key) or dict.get(notes, key)
    read(own, notes, 10)
    assert [key for key in asked if key.startswith("beat/")] == ["beat/1"] * 10
    assert len([key for key in asked if key.startswith("process/")]) <= 3


def test_only_counters_of_other_machines_say_anything(own, notes):
    notes.put("beat/2", "7")
    assert own.counters([0, 1, 2], notes) == {1: "0", 2: "7"}


def test_each_beat_is_another_number(own, notes):
    own.beat(notes)
    first = notes["beat/0"]
    own.beat(notes)
    assert notes["beat/0"] != first


def test_a_process_of_another_machine_is_never_killed_by_its_id(own, notes):
    assert not own.kill(1, notes)
    assert os.getpid() == ProcessRef.this().pid
