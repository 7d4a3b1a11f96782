"""Defines when a candidate is promoted: the table `evaluation` of retrain.toml, with `min_gain` and the guards."""

from __future__ import annotations

from pydantic import Field

from segue.records import FiniteValue

FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
"""Pattern of a function's place, in the form module:name."""


class EvaluationSpec(FiniteValue):
    """The rule for the promotion of a candidate. All shares are relative to the metric of the model in service."""

    scores: str = Field(
        pattern=FUNCTION,
        description="Function of a model and a frame, as package.module:function. The function returns a dict with one "
        "array per metric, and each array has one number per row; lower numbers are better.",
    )
    metric: str | None = Field(
        None, description="Metric that decides on the promotion; None: the first metric of the dict."
    )
    min_gain: float = Field(
        0.0,
        description="Smallest gain for a promotion, as a share. The lower end of the 95 % confidence interval of the "
        "gain must reach this value.",
    )
    guards: dict[str, float] = Field(
        default_factory=dict, description="Largest permitted loss of each further metric, as a share."
    )
    groups: tuple[str, ...] = Field(
        (),
        description="Columns whose values divide the rows into subgroups to compare; missing values form a subgroup.",
    )
    max_group_loss: float = Field(0.05, ge=0, description="Largest permitted loss of a subgroup, as a share.")
    min_group_rows: int = Field(
        100,
        gt=0,
        description="Smallest number of rows of a subgroup; smaller subgroups of a column are compared together.",
    )
