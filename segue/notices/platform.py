"""The known metadata services, and the search for the service of this machine."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping

from segue.clock import Clock
from segue.errors import MetadataServiceError
from segue.notices.aws import AwsWatcher
from segue.notices.azure import AzureWatcher
from segue.notices.gce import GceWatcher
from segue.notices.metadata_client import CloudWatcher

log = logging.getLogger(__name__)

FIND_SECONDS = 1.0
"""Longest time of the search for the platform, in seconds. A nearby metadata service answers within milliseconds."""


def cloud_watcher(name: str, clock: Clock, *, environ: Mapping[str, str] = os.environ) -> CloudWatcher:
    """Return the watcher of one provider, by its name in the run spec."""
    return _known(clock, environ)[name]


def find_platform(
    clock: Clock, *, environ: Mapping[str, str] = os.environ, limit_seconds: float = FIND_SECONDS
) -> CloudWatcher | None:
    """Return the watcher of the provider whose service answers here. If none or several answer, return None.

    The call blocks for at most `limit_seconds`. A separate thread sends a request to each service, and the threads run
    at the same time. A thread may run longer than the search.
    """
    known = _known(clock, environ)
    found: dict[str, bool] = {}
    threads = [
        threading.Thread(target=_probe, args=(watcher, found, limit_seconds), name=f"segue-is-{name}", daemon=True)
        for name, watcher in known.items()
    ]
    started = clock.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(limit_seconds - (clock.monotonic() - started), 0.0))
    names = [name for name, is_here in dict(found).items() if is_here]
    if len(names) > 1:
        log.warning("several metadata services answer, so none of them is watched services=%s", ",".join(sorted(names)))
        return None
    if not names:
        log.info("no metadata service answers here, watching only signals, recall and drop file")
        return None
    log.info("platform found platform=%s seconds=%.2f", names[0], clock.monotonic() - started)
    return known[names[0]]


def _known(clock: Clock, environ: Mapping[str, str]) -> dict[str, CloudWatcher]:
    return {kind.name: kind(clock, environ) for kind in (AwsWatcher, GceWatcher, AzureWatcher)}


def _probe(watcher: CloudWatcher, found: dict[str, bool], limit_seconds: float) -> None:
    try:
        found[watcher.name] = watcher.is_here(timeout_seconds=limit_seconds)
    except MetadataServiceError as error:
        log.debug("%s", error)
