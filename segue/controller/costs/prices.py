"""Reads current prices from the source that a run spec names: a file, a command, or the price history of AWS.

A file or a command provides TOML or JSON with the price per hour of each deployment. segue records the prices in the
run's log, so that decisions depend on the log alone. If the source fails, the last known prices remain valid. If no
prices are known yet, the functions raise an error.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from segue.clock import Clock
from segue.credentials import redacted, redacted_end
from segue.errors import LogMovedError, PriceSourceError
from segue.runlog.entries import Entry, PricesEntry
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog, Stamp
from segue.spec import RunSpec
from segue.spec.pool_prices import PoolSpec, PriceSource

log = logging.getLogger(__name__)

_LAST_CHARACTERS, _LAST_BYTES = 200, 64 * 1024
"""Maximum number of shown characters, and of read bytes, of a failed command's message.

segue redacts the message before cutting it.
"""


class CommandFailedError(Exception):
    """A price command provided no usable output. The reason contains the command's message without secrets."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


def output_of(command: str, *, timeout_seconds: float, most_bytes: int) -> bytes:
    """Return the first bytes that a shell command prints.

    All processes of the command have ended when the function returns.

    Raises:
        CommandFailedError: the command cannot start, ends with an exit code other than 0, or takes too long.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            # The output goes to files, because a process that the command leaves behind would hold a pipe open for
            # ever.
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            raise CommandFailedError(f"no shell starts here ({error.strerror})") from None
        try:
            code: int | None = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        data = output.read(most_bytes)
        errors.seek(max(errors.seek(0, os.SEEK_END) - _LAST_BYTES, 0))
        said = redacted_end(errors.read(), most_characters=_LAST_CHARACTERS)
    if code is None:
        raise CommandFailedError(f"the command did not end within {timeout_seconds:g} s{_quoted(said)}")
    if code != 0:
        raise CommandFailedError(f"the command ended with code {code}{_quoted(said)}")
    return data


def _quoted(said: str) -> str:
    return f" and said {said!r}" if said else ""


COMMAND_SECONDS = 30.0
_LARGEST_BYTES = 1 << 20
_SHAPE = 'it must be TOML or JSON with a price for each deployment, as in {"segment/spot": 0.42}'


def read_prices(pools: PoolSpec) -> dict[str, float]:
    """Return the current price per hour of each deployment, or an empty result without a source of prices.

    A price command may take 30 s. AWS has no price history for on-demand, so the function uses `on_demand_price` of the
    spec.

    Raises:
        PriceSourceError: the source fails, does not answer in time, or has no price for a deployment.
    """
    source = pools.price_source
    if source is None:
        return {}
    if source.kind == "aws":
        from segue.controller.costs.aws import spot_prices

        return spot_prices(pools) | {pools.on_demand: pools.on_demand_price}
    text = _file(source, pools) if source.kind == "file" else _command_output(source, pools)
    return _checked(_parsed(text, pools), pools)


def at_current_prices(spec: RunSpec) -> RunSpec:
    """Return the spec with the current prices of its pools.

    If the spec has no source of prices, the function returns the spec unchanged.

    Raises:
        PriceSourceError: the source gives no prices, as for `read_prices`.
    """
    if spec.pools.prices is None:
        return spec
    return spec.model_copy(update={"pools": spec.pools.at(read_prices(spec.pools))})


def with_prices_to_start(spec: RunSpec, history: History, *, clock: Clock) -> History:
    """Return the history of a run that is about to start.

    If the log has no prices, the returned history contains current prices.

    Raises:
        PriceSourceError: the source gives no prices, as for `read_prices`.
    """
    if spec.pools.prices is None or _known(spec, history) is not None:
        return history
    now = clock.now()
    return replace(history, prices=PricesEntry(entry_id="", written_at=now, **_facts(spec, now)))


def refresh_prices(runlog: RunLog, spec: RunSpec, history: History, *, clock: Clock) -> bool:
    """Record current prices in the log if the known prices are old. Return whether the log has changed.

    If the source fails, the last known prices remain valid, and the function records the reason.

    Raises:
        PriceSourceError: no prices are known, and the source fails.
        StoreWriteError, StoreReadError: the store could not be used. It is safe to call the function again.
    """
    known, now = _known(spec, history), clock.now()
    if spec.pools.prices is None:
        return False
    if known is not None and (now - known.written_at).total_seconds() < spec.pools.prices_every_seconds:
        return False
    facts = _facts(spec, now) if known is None else _renewed(spec, known, now)
    return append_at(runlog, history, lambda stamp: PricesEntry.model_validate(stamp(epoch=0) | facts))


def append_at(runlog: RunLog, history: History, build: Callable[[Stamp], Entry]) -> bool:
    """Append a record if no other process has written to the log since `history` was read.

    The result is always True, because the log has changed in both cases.
    """
    try:
        runlog.append(build, at=history.next_slot)
    except LogMovedError:
        read_history(runlog)  # Another process wrote first: its records count.
    return True


def _renewed(spec: RunSpec, known: PricesEntry, now: datetime) -> dict[str, Any]:
    try:
        return _facts(spec, now)
    except PriceSourceError as error:
        log.warning("new prices not read, keeping the prices of %s reason=%s", known.taken_at.isoformat(), error)
        facts = {"source": known.source, "prices": known.prices, "taken_at": known.taken_at}
        return facts | {"problem": error.why}


def _known(spec: RunSpec, history: History) -> PricesEntry | None:
    """Return the newest prices in the log if they are complete and come from the spec's source."""
    known = history.prices
    if known is None or known.source != spec.pools.prices:
        return None
    return known if set(spec.pools.deployments) <= set(known.prices) else None


def _facts(spec: RunSpec, now: datetime) -> dict[str, Any]:
    return {"source": spec.pools.prices, "prices": read_prices(spec.pools), "taken_at": now}


def _file(source: PriceSource, pools: PoolSpec) -> str:
    path = Path(source.argument).expanduser()
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        why = f"the file cannot be read ({error.strerror or error})"
        raise _error(pools, why, "check the path, which is relative to the folder of the run's start.") from None
    return _text(data, pools)


def _command_output(source: PriceSource, pools: PoolSpec) -> str:
    try:
        data = output_of(source.argument, timeout_seconds=COMMAND_SECONDS, most_bytes=_LARGEST_BYTES + 1)
    except CommandFailedError as error:
        raise _error(pools, error.why, "run the command by hand in the folder of the run, and correct it.") from None
    return _text(data, pools)


def _text(data: bytes, pools: PoolSpec) -> str:
    if len(data) > _LARGEST_BYTES:
        raise _error(pools, f"the answer is longer than {_LARGEST_BYTES} bytes", _SHAPE + ".")
    return data.decode("utf-8", "replace")


def _parsed(text: str, pools: PoolSpec) -> Mapping[str, Any]:
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # The parsers of TOML and of JSON raise ValueError.
        raise _error(pools, f"the answer {redacted(text)[:60]!r} cannot be read ({error})", _SHAPE + ".") from None
    return cast("Mapping[str, Any]", found)


def _checked(given: Mapping[str, Any], pools: PoolSpec) -> dict[str, float]:
    """Return the prices of the pools from `given`, which may also contain other deployments."""
    missing = [name for name in pools.deployments if name not in given]
    if missing:
        there = f"it has {', '.join(map(repr, given))}" if given else "it is empty"
        why = f"the answer has no price for {' and '.join(missing)} ({redacted(there)[:200]})"
        raise _error(pools, why, "name each deployment of [pools], with its price per hour.")
    wrong = {name: given[name] for name in pools.deployments if not _is_price(given[name])}
    if wrong:
        shown = ", ".join(redacted(f"{name} = {value!r}")[:80] for name, value in wrong.items())
        raise _error(pools, f"no prices above 0: {shown}", "give numbers, per hour.")
    return {name: float(given[name]) for name in pools.deployments}


def _is_price(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 < cast("float", value) < math.inf


def _error(pools: PoolSpec, why: str, fix: str) -> PriceSourceError:
    return PriceSourceError(source=redacted(pools.prices or ""), why=redacted(why), fix=fix)
