"""Flow `deliver`: the sample data of this example, month after month, as a data team would deliver it."""

from __future__ import annotations

from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from examples.retraining.months import LAST_MONTH, month_of, write_month
from segue.data.files import find
from segue.retraining.spec import RetrainSpec


@flow(name="deliver", retries=0, persist_result=False)
def deliver(file: str = "examples/retraining/retrain.toml") -> State[None]:
    """Write the file of the next month of 2013 to where the retraining in `file` looks for its files.

    Where there are fewer months than its first slot needs, write these. A month that is there is never written again.
    """
    data = RetrainSpec.from_toml(Path(file)).data
    there = find(data.files, data)
    needed = (data.periods or 1) + data.held_back_periods
    place = data.files.rpartition("/")[0]
    last = max((int(Path(path).stem[-2:]) for path in there), default=0)
    months = range(last + 1, min(max(last + 1, needed), LAST_MONTH) + 1)
    if not months:
        return Failed(message="all months of 2013 are delivered; remove their files to begin again.")
    for month in months:
        write_month(month_of(month), month, place, data)
    return Completed(message=f"delivered 2013-{months[0]:02} to 2013-{months[-1]:02} into {place}")
