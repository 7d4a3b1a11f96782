"""Lifecycle rules of a bucket, as S3 returns them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_READ_AT_ONCE = ("STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR")
"""Storage classes whose objects can be read without a restore. Source: S3 user guide, storage classes."""


def removes(rule: Mapping[str, Any], prefix: str) -> bool:
    """Whether a rule deletes objects below the prefix, or moves them to storage that needs a restore.

    The function is pure. Source: `GetBucketLifecycleConfiguration` of the S3 API. Rules about unfinished uploads and
    old object versions are ignored, because they do not remove current objects.
    """
    condition = rule.get("Filter", {})
    both = condition.get("And", {})
    has_tags = "Tag" in condition or bool(both.get("Tags"))  # segue sets no tags.
    of = rule.get("Prefix") or condition.get("Prefix") or both.get("Prefix") or ""
    archives = any(move.get("StorageClass") not in _READ_AT_ONCE for move in rule.get("Transitions", ()))
    acts = bool(rule.get("Expiration", {}).keys() & {"Days", "Date"}) or archives
    overlaps = prefix.startswith(of) or of.startswith(prefix)
    return rule.get("Status") == "Enabled" and not has_tags and acts and overlaps
