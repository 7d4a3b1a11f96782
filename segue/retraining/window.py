"""Describes the window of a slot: its files, their contents, and the changes since the previous slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from segue.data.files import fetch, find, is_remote
from segue.data.frames import facts_of
from segue.errors import NoDataError, SpecError
from segue.retraining.periods import Period, newest_complete, period_at, periods_until
from segue.retraining.spec import MissingPeriod, RetrainSpec, Window, WindowFile
from segue.retraining.window_spec import WindowSpec
from segue.spec import DataAccess

if TYPE_CHECKING:
    from segue.data.tables.column_facts import FileFacts
    from segue.data.tables.column_types import Layout

_FETCHED_AT_ONCE = 4

Find = Callable[[str], Sequence[str]]
"""A function that lists the files that match a pattern."""


class FoundFile(NamedTuple):
    """A file of a window."""

    path: str
    period: str
    is_held_back: bool


class Chosen(NamedTuple):
    """The files of a window, before any file is read."""

    files: tuple[FoundFile, ...]
    missing: tuple[MissingPeriod, ...]


class Described(NamedTuple):
    """The files of a window, after they were read."""

    files: tuple[WindowFile, ...]
    local: dict[str, Path]
    """The local path of each file, by its path in the window."""
    layout: Layout
    """The types of the columns of the files."""


def window_of(spec: RetrainSpec, slot: datetime) -> tuple[Window, dict[str, Path]]:
    """Return the window of a slot, and the local path of each file. The function reads every file once.

    Raises:
        NoDataError: there are no files to train on or to evaluate with, or `on_missing` is stop and a period has no
            files.
        DataUnreadableError: a file could not be read, is damaged, or is being written to.
        MissingExtraError: the extra package for files at such an address is not installed.
    """
    chosen = choose(spec, slot, find=lambda pattern: find(pattern, spec.data))
    data = described(chosen.files, spec.data)
    layout = data.layout
    window = Window(files=data.files, missing=chosen.missing, columns=layout.columns, unlike=layout.unlike)
    for what, files in (("train on", window.training), ("evaluate with", window.held_back)):
        if files and not any(file.rows for file in files):
            raise NoDataError(what=f"there are no rows to {what}", where=tuple(file.path for file in files))
    return window, data.local


def described(places: Sequence[FoundFile], access: DataAccess) -> Described:
    """Read each of these files once, and describe their contents.

    Raises:
        DataUnreadableError: a file could not be read, is damaged, or is being written to.
        MissingExtraError: the extra package for files at such an address is not installed.
    """
    from segue.data.tables.column_types import layout_of

    with ThreadPoolExecutor(_FETCHED_AT_ONCE) as pool:
        fetched = list(pool.map(lambda place: _described(place, access), places))
    layout = layout_of([(file.path.rpartition("/")[2], facts) for file, _, facts in fetched], access.reading)
    return Described(tuple(file for file, _, _ in fetched), {file.path: local for file, local, _ in fetched}, layout)


def choose(spec: RetrainSpec, slot: datetime, *, find: Find) -> Chosen:
    """Choose the files of a slot.

    Raises:
        NoDataError: there are no files to train on or to evaluate with, or `on_missing` is stop and a period has no
            files.
        SpecError: the fields of strftime give the same file for several periods.
    """
    data = spec.data
    if data.period is None:
        chosen = Chosen(tuple(_by_file(data, find)), ())
    else:
        chosen = _by_period(data, _periods_of(spec, slot), find)
    twice = [path for path, count in Counter(place.path for place in chosen.files).items() if count > 1]
    if twice:
        problem = f"data.files: {twice[0]} is a file of several periods; name each {data.period} by fields of strftime"
        raise SpecError(source="retrain.toml", problems=(problem,))
    patterns = tuple(each.pattern for each in chosen.missing) or (data.files,)
    if chosen.missing and data.on_missing == "stop":
        raise NoDataError(what="files are missing", where=patterns)
    if all(place.is_held_back for place in chosen.files):
        raise NoDataError(what="there are no files to train on", where=patterns)
    if data.held_back_periods and not any(place.is_held_back for place in chosen.files):
        raise NoDataError(what="there are no files to evaluate with", where=patterns)
    return chosen


def changes_since(before: Window, now: Window) -> tuple[str, ...]:
    """Return sentences about late files and changed content in the periods that both windows cover."""
    earlier, current = ({file.path: file for file in window.files} for window in (before, now))
    missing = {each.period for each in before.missing}
    covered = {file.period for file in before.files}
    changes = []
    for file in now.files:
        known = earlier.get(file.path)
        if known is not None and known.sha256 != file.sha256:
            rows = "" if known.rows == file.rows else f" ({known.rows} rows then, {file.rows} now)"
            changes.append(f"{file.path} has other content than in the previous window{rows}")
        elif known is None and file.period in missing:
            changes.append(f"{file.path} is late: the previous window had no files of {file.period}")
        elif known is None and file.period in covered:
            changes.append(f"{file.path} is late: the previous window had other files of {file.period} only")
    still = {file.period for file in now.files}
    gone = (path for path, file in earlier.items() if path not in current and file.period in still)
    return (*changes, *(f"{path} is missing, but was in the previous window" for path in gone))


def _periods_of(spec: RetrainSpec, slot: datetime) -> Sequence[Period]:
    data, unit = spec.data, spec.data.period
    assert unit is not None
    last = newest_complete(slot, unit, spec.zone, delay=timedelta(hours=data.delay_hours))
    if data.window == "sliding":
        return periods_until(last, count=(data.periods or 0) + data.held_back_periods)
    assert data.since is not None
    return periods_until(last, since=period_at(datetime.combine(data.since, time(), spec.zone), unit, spec.zone))


def _by_period(data: WindowSpec, periods: Sequence[Period], find: Find) -> Chosen:
    files: list[FoundFile] = []
    missing: list[MissingPeriod] = []
    for number, period in enumerate(periods):
        pattern = _absolute(period.place(data.files))
        is_held_back = number >= len(periods) - data.held_back_periods
        found = [FoundFile(path, period.name, is_held_back) for path in find(pattern)]
        files += found
        missing += [] if found else [MissingPeriod(period=period.name, pattern=pattern)]
    return Chosen(tuple(files), tuple(missing))


def _by_file(data: WindowSpec, find: Find) -> Iterable[FoundFile]:
    paths = find(_absolute(data.files))
    held_back = len(paths) - data.held_back_periods
    first = 0 if data.periods is None or data.window == "growing" else max(held_back - data.periods, 0)
    return (
        FoundFile(path, path.rpartition("/")[2], number >= held_back)
        for number, path in enumerate(paths[first:], start=first)
    )


def _described(place: FoundFile, access: DataAccess) -> tuple[WindowFile, Path, FileFacts]:
    file, local = fetch(place.path, access)
    facts = facts_of(local, name=place.path, reading=access.reading)
    known = file.model_dump() | {"rows": facts.rows, "period": place.period, "is_held_back": place.is_held_back}
    return WindowFile.model_validate(known), local, facts


def _absolute(pattern: str) -> str:
    """Make a pattern absolute, because segments run in other folders than the flow that chooses the files."""
    if is_remote(pattern):
        return pattern
    path = pattern.removeprefix("file://")
    return str(Path.cwd() / path) + ("/" if path.endswith("/") else "")
