"""What a segment passes on to its trainer: every notice once, also those that came before there was a trainer."""

from __future__ import annotations

import signal

from segue.controller.segment import NoticeRelay


class Trainer:
    """A trainer that only records what it is given."""

    def __init__(self):
        self.given = []

    def give_notice(self, number=signal.SIGTERM):
        self.given.append(number)


def test_each_signal_is_passed_on_as_itself():
    relay, trainer = NoticeRelay(), Trainer()
    relay.attach(trainer)
    assert not relay.is_given
    relay.give(signal.SIGUSR1)
    relay.give()
    assert relay.is_given
    assert trainer.given == [signal.SIGUSR1, signal.SIGTERM]


def test_notices_that_came_before_the_trainer_reach_it_when_it_starts():
    relay, trainer = NoticeRelay(), Trainer()
    relay.give(signal.SIGUSR1)
    relay.give(signal.SIGTERM)
    relay.attach(trainer)
    assert trainer.given == [signal.SIGUSR1, signal.SIGTERM]
