"""Spot while nobody sees it: what a run on on-demand, without a sentinel, can believe of it. Pure.

A belief is what spot was when it was last seen, up or down in one of eight ages, and how long ago that is, in the same
eight bins. What spot does meanwhile follows from the hazards, so a belief says how likely each of its states is by now.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from segue.policy.rules.hazards import AGE_EDGES_SECONDS, BINS, age_bin
from segue.policy.rules.view import Flags, Floats

BELIEFS = 2 * BINS * BINS
"""By what was last seen, first up by age, then down by age; then by how long ago."""
_LAST_SECONDS = 1.5 * AGE_EDGES_SECONDS[-1]
"""For which the bin without an end stands: longer ago, next to nothing is known."""


def belief_at(is_up: Flags, spell_seconds: Floats, unseen_seconds: Floats) -> NDArray[np.intp]:
    """The belief, for each run; `spell_seconds` count as if what was last seen had gone on."""
    seen = np.where(is_up, 0, BINS) + age_bin(np.maximum(spell_seconds - unseen_seconds, 0.0))
    return np.asarray(seen * BINS + age_bin(unseen_seconds), np.intp)


def fades(step_seconds: float) -> Floats:
    """Chances from each belief to each, in one step that nobody looks: (BELIEFS, BELIEFS)."""
    widths = np.diff(np.concatenate([[0.0], AGE_EDGES_SECONDS]))
    onward = np.append(np.minimum(step_seconds / widths, 1.0), 0.0)
    one = np.diag(1 - onward) + np.diag(onward[:-1], 1)
    return np.kron(np.eye(2 * BINS), one)


def likely(chances: Floats, step_seconds: float) -> Floats:
    """How likely each state of spot is, by belief: (BELIEFS, states); `chances` are those of one step."""
    edges = np.concatenate([[0.0], AGE_EDGES_SECONDS])
    since = np.append((edges[:-1] + edges[1:]) / 2, _LAST_SECONDS)
    steps = np.maximum(np.rint(since / step_seconds), 1).astype(int)
    later = np.stack([np.linalg.matrix_power(chances, int(count)) for count in steps])  # (BINS, states, states)
    return later.transpose(1, 0, 2).reshape(BELIEFS, 2 * BINS)
