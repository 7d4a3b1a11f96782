"""Defines records. A record is a frozen value that reaches disk or another process.

A `Record` is a whole document with a schema version. A `Value` is a part of a record. A record with unknown fields is
refused, because a setting in a dropped field would have no effect.
"""

from __future__ import annotations

from segue.records.attempts import (
    Anomaly,
    Capacity,
    CodeFailure,
    Notice,
    PoolRequest,
    SegmentPlan,
    SegmentReport,
    Skip,
    StopReason,
)
from segue.records.documents import FiniteValue, Record, Value
from segue.records.evidence import Finding, StateMark, Verdict, VerdictKind, WitnessRow
from segue.records.machines import Machine, MachineCheck, MachineKind, SeenMachine, SlowRank
from segue.records.manifest import CheckpointRef, CurveDigest, Environment, Fork, Manifest, WeightsFile
from segue.records.seen_pools import SeenInterval, SeenPools, SeenPrice, SeenStart
from segue.records.signs_of_life import Heartbeat, ParentRecord

__all__ = (
    "Anomaly",
    "Capacity",
    "CheckpointRef",
    "CodeFailure",
    "CurveDigest",
    "Environment",
    "Finding",
    "FiniteValue",
    "Fork",
    "Heartbeat",
    "Machine",
    "MachineCheck",
    "MachineKind",
    "Manifest",
    "Notice",
    "ParentRecord",
    "PoolRequest",
    "Record",
    "SeenInterval",
    "SeenMachine",
    "SeenPools",
    "SeenPrice",
    "SeenStart",
    "SegmentPlan",
    "SegmentReport",
    "Skip",
    "SlowRank",
    "StateMark",
    "StopReason",
    "Value",
    "Verdict",
    "VerdictKind",
    "WeightsFile",
    "WitnessRow",
)
