"""The specification of a run."""

from segue.spec.budget import BudgetSpec, OnExceeded
from segue.spec.data import DataAccess, DataFile, DataSpec, Reading
from segue.spec.policy import PolicySpec
from segue.spec.run import RunSpec
from segue.spec.section import RENAMED, read_toml
from segue.spec.sections import (
    MOST_WITNESS_STEPS,
    AnomalySpec,
    CheckpointSpec,
    ContinuitySpec,
    LivenessSpec,
    OnAnomaly,
    ProgramSpec,
    SegmentSpec,
    StoreSpec,
)

__all__ = [
    "MOST_WITNESS_STEPS",
    "RENAMED",
    "AnomalySpec",
    "BudgetSpec",
    "CheckpointSpec",
    "ContinuitySpec",
    "DataAccess",
    "DataFile",
    "DataSpec",
    "LivenessSpec",
    "OnAnomaly",
    "OnExceeded",
    "PolicySpec",
    "ProgramSpec",
    "Reading",
    "RunSpec",
    "SegmentSpec",
    "StoreSpec",
    "read_toml",
]
