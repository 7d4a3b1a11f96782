"""Kinds of faulty resumes: data in another order or with other content, changed code, unregistered state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.continuity.faults import (
    CODE,
    CONTENT,
    NAMED_REPLAY,
    ORDER,
    SETUP_CODE,
    Fault,
    Kind,
    Live,
)
from segue.data.loader import Feed
from segue.data.order import Ids, SampleOrder

_NUMBERS = frozenset({"numbers"})


class _Shifted:
    """A sample order that returns the samples of another position than the requested position."""

    def __init__(self, inner: SampleOrder, place: Callable[[Any], Any]) -> None:
        self._inner, self._place = inner, place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def at(self, places: Ids) -> Ids:
        return self._inner.at(self._place(places))

    def batch(self, samples_seen: int) -> Ids:
        return self._inner.batch(self._place(samples_seen))


def _shift(batches: int) -> Callable[[Feed], None]:
    """Draw samples that are this number of batches away from the run's position."""

    def fed(feed: Feed) -> None:
        by = feed.order.batch_size
        # Places are unsigned: what is subtracted is not made negative first.
        order = _Shifted(feed.order, lambda seen: seen + by if batches > 0 else seen - by)
        feed.order = order  # type: ignore[assignment]

    return fed


def _from_the_start() -> Callable[[Feed], None]:
    def fed(feed: Feed) -> None:
        starts: list[int] = []

        def place(seen: Any) -> Any:
            starts.append(int(np.min(seen)))
            return seen - type(seen)(starts[0]) if isinstance(seen, int) else seen - np.uint64(starts[0])

        feed.order = _Shifted(feed.order, place)  # type: ignore[assignment]

    return fed


def _other_seed(feed: Feed) -> None:
    old = feed.order
    feed.order = SampleOrder(old.count, old.batch_size, old.seed + 1, old.shuffle, old.drop_last)


def _no_samples_seen(tree: Any, live: Live) -> Any:
    return {**tree, "samples_seen": 0}


def _order(name: str, fault: Fault, **more: Any) -> Kind:
    return Kind(name, "data order", fault, ORDER, **more)


def _content(name: str, *, needs: frozenset[str] = frozenset(), **edit: Any) -> Kind:
    return Kind(name, "data content", Fault(edit=edit), CONTENT, needs=needs)


DATA_KINDS = (
    _order("data from the start", Fault(fed=_from_the_start())),
    _order("position lost", Fault(trees={"progress": _no_samples_seen})),
    _order("one batch skipped", Fault(fed=_shift(1))),
    _order("one batch repeated", Fault(fed=_shift(-1))),
    _order("another shuffle", Fault(fed=_other_seed)),
    _order("not shuffled", Fault(edit={"shuffle": False})),
    _order("half the batch size", Fault(edit={"batch_size": 16})),
    _order("global batch of another world size", Fault(edit={"batch_size": 64})),
    # An epoch of 8 batches and a short one: step 57 is in its middle, and so the witness sees its end.
    _order("last batch dropped", Fault(edit={"drop_last": True}), config={"samples": 32 * 8 + 5, "drop_last": False}),
    _order("samples added", Fault(edit={"samples": 1501})),
    _content("2 % of rows changed", inputs_every=50),
    _content("labels of 1 % of rows changed", targets_every=100),
    _content("rows sorted otherwise", is_reversed=True),
    _content("another normalisation", scale=1.01, needs=_NUMBERS),
    _content("numbers through float16", is_half=True, needs=_NUMBERS),
    _content("augmentation stronger", noise=0.12),
    _content("augmentation more probable", noise_probability=0.8),
    _content("code of the augmentation", other_augmentation=True),
)

_CLIP = CODE | {"optimizer"}


def _code(name: str, *, accept: frozenset[str] = CODE, needs: frozenset[str] = frozenset(), **edit: Any) -> Kind:
    return Kind(name, "code", Fault(edit=edit), accept, needs=needs)


CODE_KINDS = (
    _code("dropout stronger", dropout=0.15),
    _code("another activation", activation="gelu"),
    _code("epsilon of the norm layers", norm_eps=1e-3),
    _code("momentum of the batch norm", norm_momentum=0.01, needs=frozenset({"batchnorm"})),
    _code("attention sees what follows", is_causal=False, needs=frozenset({"text"})),
    _code("label smoothing", label_smoothing=0.1, needs=frozenset({"classes"})),
    _code("threshold of the loss", huber_delta=0.5, needs=frozenset({"flights"})),
    _code("loss scaled by 1.01", loss_factor=1.01),
    _code("code of the loss", other_loss=True),
    _code("autocast to bf16", is_autocast=True),
    _code("gradient limit doubled", clip=1.0, accept=_CLIP),
    _code("gradient limit gone", clip=None, accept=_CLIP),
    _code("gradients limited one by one", clip_each=0.02, clip=None, accept=_CLIP | {"setup.binding"}),
    _code("scheduler stepped twice", double_schedule=True, accept=SETUP_CODE | {"scheduler"}),
    Kind(
        "warm-up of another length",
        "code",
        Fault(edit={"warm_up_steps": 30}),
        SETUP_CODE | {"scheduler", "optimizer", "setup.schedule"},
        config={"schedule": "warm-up"},
    ),
    _code("decay of the average", ema_decay=0.99, accept=SETUP_CODE | {"extra.average"}),
    _code("after_step not called", calls_after_step=False, accept=CODE | {"optimizer", "extra.average"}),
    _code("equal parameters in another order", swapped_order=True, accept=_CLIP | {"setup.binding"}),
)


def _unregistered(where: str, accept: frozenset[str]) -> Kind:
    return Kind(
        f"unregistered state in the {where}",
        "unregistered",
        Fault(),
        accept | {"unregistered state"},
        config={"hidden": where},
    )


HIDDEN_KINDS = (
    _unregistered("model", CODE),
    _unregistered("loss", CODE),
    _unregistered("data", CONTENT | SETUP_CODE),
    _unregistered("generator", CONTENT | NAMED_REPLAY | SETUP_CODE),
)
EDIT_KINDS = (*DATA_KINDS, *CODE_KINDS, *HIDDEN_KINDS)
