"""The state of an attempt's flow run, from its report."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from segue.prefect.state_words import Word, state_with
from segue.records import SegmentReport, StopReason


def state_of(report: SegmentReport) -> State[Any]:
    """The state of an attempt in the Prefect UI. The state of a preempted attempt is Crashed, never Failed."""
    message = message_of(report)
    match report.stop_reason:
        case StopReason.FINISHED | StopReason.BOUND:
            return Completed(message=message)
        case StopReason.NOTICE:
            return state_with(Word.PREEMPTED, message)
        case StopReason.LOST:
            return state_with(Word.LOST, message)
        case StopReason.FENCED:
            return state_with(Word.FENCED, message)
        case StopReason.OUT_OF_MEMORY:
            return state_with(Word.OUT_OF_MEMORY, message)
        case StopReason.HUNG:
            return state_with(Word.HUNG, message)
        case StopReason.CANCELLED:
            return Cancelled(message=message)
        case StopReason.NO_CAPACITY:
            return state_with(Word.NO_CAPACITY, message)
        case StopReason.START_FAILED:
            return state_with(Word.START_FAILED, message)
        case StopReason.FAILED if report.anomaly is not None:
            return state_with(Word.ANOMALY, message)
        case StopReason.FAILED:
            return Failed(message=message)


def message_of(report: SegmentReport) -> str:
    """One line about the attempt. After a failure, the message also has the traceback of the user's code."""
    if not report.got_capacity and report.note:
        return report.note
    ref = report.checkpoint
    committed = f"step {ref.step} is committed" if ref is not None else "this attempt committed nothing"
    line = f"{report.stop_reason.in_words} at step {report.to_step} on {report.capacity}; {committed}, "
    line += f"{report.lost_steps} steps must be done again" if report.lost_steps else "no step is lost"
    if report.note:
        line += f"; {report.note}"
    return f"{line}\n{report.failure.traceback}" if report.failure else line
