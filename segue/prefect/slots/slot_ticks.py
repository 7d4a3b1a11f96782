"""Computes the ticks of a retraining's schedule in the same way as Prefect's scheduler."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from prefect.client.schemas.schedules import CronSchedule
from pydantic import ValidationError

from segue.errors import SpecError
from segue.retraining.history import Models
from segue.retraining.slots import slot_at
from segue.retraining.spec import RetrainSpec

_MOST_TICKS = 10_000
_LONGEST_GAP, _ONE_DAY = timedelta(hours=3), timedelta(days=1)


def ticks(spec: RetrainSpec, *, since: datetime, until: datetime) -> tuple[datetime, ...]:
    """Return the times of the schedule after `since` and up to `until`, in UTC. Without a schedule, return no times.

    The times are equal to those of Prefect's scheduler, also at daylight saving changes. If the clock shows a time
    twice, this time has one tick. If the clock skips a time, the tick is earlier by the skipped interval.

    Raises:
        SpecError: the schedule is not a cron expression.
    """
    if spec.schedule is None or until <= since:
        return ()
    require_cron(spec)
    # The server's class is used, because the client's class has no ticks.
    from prefect.server.schemas.schedules import CronSchedule as ServerSchedule

    schedule = ServerSchedule(cron=spec.schedule, timezone=spec.timezone)
    found = asyncio.run(schedule.get_dates(n=_MOST_TICKS, start=since.astimezone(UTC), end=until.astimezone(UTC)))
    return tuple(slot for slot in map(slot_at, found) if since < slot <= until)


def ticks_of_the_evening_before(spec: RetrainSpec, *, since: datetime, until: datetime) -> tuple[datetime, ...]:
    """Return the ticks that come on the day before the scheduled day, because the clock skips the time after midnight.

    Raises:
        SpecError: the schedule is not a cron expression.
    """
    on_the_calendar = spec.model_copy(update={"timezone": "UTC"})  # In UTC, days have all hours.
    around = ticks(on_the_calendar, since=since - _ONE_DAY, until=until + _ONE_DAY)
    wanted = {tick.replace(tzinfo=None) for tick in around}
    found = [tick for tick in ticks(spec, since=since, until=until) if tick < around[-1] - _ONE_DAY]
    local = {tick: tick.astimezone(spec.zone).replace(tzinfo=None) for tick in found}
    return tuple(
        tick
        for tick, clock in local.items()
        if clock not in wanted
        and any(clock < each <= clock + _LONGEST_GAP and each.date() > clock.date() for each in wanted)
    )


def begins_for_data(spec: RetrainSpec, models: Models, slot: datetime) -> bool:
    """Whether a slot needs new data. A slot that a person begins needs no new data.

    A slot needs new data if data began it, or if it comes from the schedule of a retraining with an arrival trigger.
    """
    if slot in models.triggers:
        return True
    is_watched = spec.trigger is not None and spec.trigger.arrival is not None
    return is_watched and slot in ticks(spec, since=slot - timedelta(seconds=1), until=slot)


def require_cron(spec: RetrainSpec) -> CronSchedule:
    """Return the schedule in Prefect's format.

    Raises:
        SpecError: there is no schedule, or it is not a cron expression.
    """
    if spec.schedule is None:
        problem = 'schedule: required for a deployment with a schedule, e.g. "0 6 2 * *"'
        raise SpecError(source="retrain.toml", problems=(problem,))
    try:
        return CronSchedule(cron=spec.schedule, timezone=spec.timezone)
    except ValidationError:
        problem = f'schedule: {spec.schedule!r} is no cron expression; give five fields, e.g. "0 6 2 * *"'
        raise SpecError(source="retrain.toml", problems=(problem,)) from None
