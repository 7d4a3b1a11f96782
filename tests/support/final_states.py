"""The state in which a run ended."""

from __future__ import annotations

from segue.continuity.recipe_diff import NOT_STATE
from segue.runlog.history import History


def state_at_end(history: History) -> dict[str, str]:
    """Digests of all restored components. Those that are only compared include the config, which may hold pauses."""
    components = history.newest.manifest.components
    return {name: digest for name, digest in components.items() if name not in NOT_STATE}
