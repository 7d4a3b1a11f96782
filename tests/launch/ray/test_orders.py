"""What an actor is told, where the connection to it breaks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

orders = pytest.importorskip("segue.launch.ray.gang", reason="the extra `ray` is not installed")


class DeafActor:
    """An actor that answers its calls with these errors, one after the other."""

    def __init__(self, monkeypatch, *errors):
        self.heard, self._errors = [], list(errors)
        self.tell = SimpleNamespace(remote=lambda *order: order)
        monkeypatch.setattr(orders.ray, "wait", lambda asked, timeout: (asked, []))
        monkeypatch.setattr(orders.ray, "get", self._answer)

    def _answer(self, order):
        if self._errors and (error := self._errors.pop(0)) is not None:
            raise error
        self.heard.append(order)


def test_what_an_actor_did_not_hear_is_said_again_before_anything_else(monkeypatch):
    away = orders.ray.exceptions.ActorUnavailableError("the connection broke", None)
    actor = DeafActor(monkeypatch, away, away, None)
    given = orders.Orders(actor)
    given.give("freeze", 0)
    given.give("thaw", 0)
    for _ in range(5):
        given.look()
    assert actor.heard == [("freeze", 0), ("thaw", 0)]


def test_what_an_actor_refuses_is_not_said_again(monkeypatch):
    actor = DeafActor(monkeypatch, orders.ray.exceptions.RayError("it is gone"))
    given = orders.Orders(actor)
    given.give("give_notice", 15)
    given.look()
    given.give("kill", 0)
    given.look()
    assert actor.heard == [("kill", 0)]
