"""Compares the data in service with the data of the version in service, and computes the drift.

The data of a version is the data on which the version was trained and evaluated.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from tempfile import TemporaryDirectory

from segue.data.files import Listed
from segue.errors import SpecError
from segue.retraining.gate.columns import columns_of
from segue.retraining.gate.measures import drifts_of
from segue.retraining.gate.profile import Drift
from segue.retraining.gate.record import ColumnProfile
from segue.retraining.trigger_spec import DriftSpec
from segue.retraining.window import FoundFile, described
from segue.spec import DataAccess

_MOST_NAMED = 5


def newest_of(spec: DriftSpec, listed: Sequence[Listed]) -> Sequence[Listed]:
    """Return the newest files, which are the only files that the check reads."""
    return listed[-spec.newest_files :]


def key_of(files: Sequence[Listed], version: int, window: str) -> str:
    """Return a key of a drift comparison. The key changes with the files, the version in service and the `window`."""
    lines = [f"version {version}", window, *(repr(tuple(each)) for each in files)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def drift_in(
    spec: DriftSpec, files: Sequence[Listed], before: Mapping[str, ColumnProfile], access: DataAccess
) -> dict[str, Drift]:
    """Return the drift of each column of these files.

    If a column in `spec.columns` no longer exists, its drift is infinite. After the comparison, local copies of
    remote files are removed.

    Raises:
        DataUnreadableError: a file could not be read, is damaged, or is being written to.
        MissingExtraError: the extra package for files at such an address is not installed.
        SpecError: a column of `spec.columns` was not in the data of the version in service.
    """
    unknown = [name for name in spec.columns or () if name not in before]
    if unknown:
        problem = f"trigger.drift.columns: the version in service was not trained on a column {unknown[0]}"
        raise SpecError(source="retrain.toml", problems=(f"{problem}; it was on {', '.join(before)}",))
    places = [FoundFile(each.path, each.path.rpartition("/")[2], False) for each in files]
    # No run trains on these files, so they do not belong in the cache.
    with TemporaryDirectory(prefix="segue-drift-") as copies:
        data = described(places, access.model_copy(update={"cache_folder": copies}))
        with columns_of(data.files, data.local, data.layout.columns, access.reading) as columns:
            return drifts_of(columns, before, only=spec.columns)


def exceeded(spec: DriftSpec, drifts: Mapping[str, Drift]) -> str:
    """Return a text about the columns that have drifted, the largest drift first. The text may be empty."""
    found = sorted(drifts.items(), key=lambda each: -each[1].psi)
    sentences = [sentence for name, drift in found for sentence in _sentences(spec, name, drift)]
    more = f"; {len(sentences) - _MOST_NAMED} more" if len(sentences) > _MOST_NAMED else ""
    return "; ".join(sentences[:_MOST_NAMED]) + more


def largest(drifts: Mapping[str, Drift]) -> str:
    """Return a text about the column with the largest drift."""
    if not drifts:
        return "no column of it can be compared"
    name, drift = max(drifts.items(), key=lambda each: each[1].psi)
    return f"the largest psi is {_figure(drift.psi)}, of {name}"


def _sentences(spec: DriftSpec, name: str, drift: Drift) -> Iterator[str]:
    if math.isinf(drift.psi):
        yield f"{name} is missing, or of another kind"
        return
    for what, value, limit in (("psi", drift.psi, spec.max_psi), ("ks", drift.ks, spec.max_ks)):
        if limit is not None and value is not None and value > limit:
            yield f"{name} has the {what} {_figure(value)}, above {limit:g}"


def _figure(value: float) -> str:
    return f"{value:.3g}"
