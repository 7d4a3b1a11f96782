"""Checks the sources of notices on this machine: metadata services and the notice file."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from segue.doctor.check import Item, Result, fail, ok, skipped, warn
from segue.doctor.subject import Subject
from segue.errors import MetadataServiceError
from segue.notices.aws import DISABLED_VARIABLE, is_disabled, is_hop_limit_exceeded
from segue.notices.platform import cloud_watcher

_DMI = Path("/sys/class/dmi/id")
_VENDORS = {"Amazon EC2": "aws", "Google": "gce", "Microsoft Corporation": "azure"}
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"
"""Chassis tag of every Azure machine. Other machines of the same vendor have another tag."""
_ANSWER_SECONDS = 2.0
_SIGNALS = "signals, recalls and liveness.notice_file are watched"
_UNWATCHED = f"notices = []: no metadata service is watched; {_SIGNALS}"
_UNSEEN = (
    "if SIGTERM is the notice (Kubernetes, ECS), set notices = []; otherwise enable the metadata service of the "
    "machine, and in a container on AWS set the hop limit of this service to 2."
)


_ENABLE = f"unset {DISABLED_VARIABLE}, or set notices = [] if SIGTERM is the notice."


def items(subject: Subject) -> list[Item]:
    """Return the checks of the sources of notices."""
    return [
        Item("notices.metadata", partial(metadata, subject)),
        Item("notices.hop-limit", partial(hop_limit, subject)),
        Item("notices.file", partial(notice_file, subject)),
    ]


def metadata(subject: Subject, *, dmi: Path = _DMI) -> Result:
    """Check that each metadata service in the run's `notices` answers on this machine."""
    wanted = subject.spec.notices if subject.spec is not None else None
    if wanted is None:
        return _searched(subject, vendor_platform(dmi))
    if not wanted:
        return skipped(_UNWATCHED)
    if "aws" in wanted and is_disabled(subject.environ):
        return fail(f"notices contains aws, but {DISABLED_VARIABLE} is set", fix=_ENABLE)
    silent = [name for name in dict.fromkeys(wanted) if not _answers(name, subject)]
    if silent:
        named = " and ".join(silent)
        return fail(f"notices contains {named}, but its metadata service does not answer here", fix=_UNSEEN)
    return ok(f"the metadata service of {' and '.join(wanted)} answers")


def hop_limit(subject: Subject, *, answer_seconds: float = _ANSWER_SECONDS) -> Result:
    """Check that tokens of AWS's metadata service reach this container. Each request waits at most `answer_seconds`."""
    wanted = subject.spec.notices if subject.spec is not None else None
    if wanted is not None and not wanted:
        return skipped(_UNWATCHED)
    if is_disabled(subject.environ):
        return skipped(f"{DISABLED_VARIABLE} is set, so AWS's metadata service is not asked")
    is_exceeded = is_hop_limit_exceeded(subject.environ, timeout_seconds=answer_seconds)
    if is_exceeded is None:
        return skipped("no metadata service of AWS answers here")
    if not is_exceeded:
        return ok("tokens of AWS's metadata service arrive here")
    return fail(
        "AWS's metadata service answers, but its tokens do not arrive: its hop limit is 1, and this is a container",
        fix="if SIGTERM is the notice (Kubernetes, ECS), set notices = []; otherwise run `aws ec2 "
        "modify-instance-metadata-options --http-put-response-hop-limit 2 --instance-id ID`, or set it in the launch "
        "template.",
    )


def notice_file(subject: Subject) -> Result:
    """Check that the notice file can be created, and that it does not exist yet."""
    named = subject.liveness.notice_file
    if named is None:
        return skipped("liveness.notice_file is not set")
    path = Path(named)
    if not os.access(path.parent, os.R_OK | os.X_OK):
        return fail(
            f"the folder of liveness.notice_file, {path.parent}, does not exist or cannot be read",
            fix="create the folder, or mount it into the container.",
        )
    if path.exists():
        return warn(f"{path} exists: every attempt on this machine ends at once", fix="remove the file.")
    return ok(f"{path} does not exist, and its folder can be read")


def vendor_platform(dmi: Path) -> str | None:
    """Return the cloud that this machine's firmware names, even if no metadata service answers.

    If the firmware names no known cloud, return None.
    """
    found = _VENDORS.get(_read(dmi / "sys_vendor"))
    return None if found == "azure" and _read(dmi / "chassis_asset_tag") != _AZURE_TAG else found


def _searched(subject: Subject, vendor: str | None) -> Result:
    if subject.platform is not None:
        return ok(
            f"the metadata service of {subject.platform} answers, and a run on this machine watches it for notices"
        )
    if vendor == "aws" and is_disabled(subject.environ):
        return fail(f"this machine is on aws, but {DISABLED_VARIABLE} is set", fix=_ENABLE)
    if vendor is not None:
        return fail(f"this machine is on {vendor}, but its metadata service does not answer here", fix=_UNSEEN)
    return ok(f"this machine is on no known cloud; {_SIGNALS}")


def _answers(name: str, subject: Subject) -> bool:
    try:
        watcher = cloud_watcher(name, subject.clock, environ=subject.environ)
        return watcher.is_here(timeout_seconds=_ANSWER_SECONDS)
    except MetadataServiceError:
        return False


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
