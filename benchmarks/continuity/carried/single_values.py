"""Values of classes that are neither numbers nor text, and that a loop gives another value of the same class."""

from __future__ import annotations

from benchmarks.continuity.carried.kind import Kind, in_steps


def _replaced_record(name: str, options: str) -> Kind:
    return in_steps(
        name,
        "state",
        top=f"""
        from dataclasses import replace


        @dataclass({options})
        class State:
            total: float = 0.0
        """,
        before="state = State()",
        body="""
        state = replace(state, total=state.total + loss.item())
        set_lr(optimizer, 0.02 / (1 + state.total / 30))
        """,
    )


KINDS: tuple[Kind, ...] = (
    in_steps(
        "exact sum of losses",
        "total",
        top="from decimal import Decimal",
        before='total = Decimal("0")',
        body="total += Decimal(loss.item())\nset_lr(optimizer, 0.02 / (1 + float(total) / 30))",
    ),
    in_steps(
        "share as a fraction",
        "share",
        top="from fractions import Fraction",
        before="share = Fraction(1, 2)",
        body="share += Fraction(len(a), 640)\nset_lr(optimizer, 0.02 * float(share))",
    ),
    in_steps(
        "day of a simulated calendar",
        "day",
        top="from datetime import date, timedelta",
        before="day = date(2026, 2, 20)",
        body="day += timedelta(days=1)\nset_lr(optimizer, 0.005 if day.month == 3 else 0.02)",
    ),
    in_steps(
        "file of the best weights",
        "best_file",
        top="from pathlib import Path",
        before="best_file, best = None, run.carry('best', loss=1e9)",
        body="""
        if loss.item() < best.loss:
            best.loss = loss.item()
            best_file = Path(f"best-{step}.pt")
        set_lr(optimizer, 0.02 / (1 + len(str(best_file))))
        """,
    ),
    in_steps(
        "phase of an enumeration",
        "phase",
        top="""
        from enum import Enum


        class Phase(Enum):
            WARM = 1
            MAIN = 2
            COOL = 3
        """,
        before="phase = Phase.WARM",
        body="""
        if phase is Phase.WARM and step == 7:
            phase = Phase.MAIN
        elif phase is Phase.MAIN and step == 25:
            phase = Phase.COOL
        set_lr(optimizer, 0.02 / phase.value)
        """,
    ),
    in_steps(
        "named tuple that is replaced",
        "state",
        top="""
        from typing import NamedTuple


        class State(NamedTuple):
            total: float
            count: int
        """,
        before="state = State(0.0, 0)",
        body="""
        state = state._replace(total=state.total + loss.item())
        set_lr(optimizer, 0.02 / (1 + state.total / 30))
        """,
    ),
    _replaced_record("frozen data class that is replaced", "frozen=True"),
    _replaced_record("data class with slots that is replaced", "slots=True"),
    in_steps(
        "rest of a range",
        "rest",
        before="rest = range(100)",
        body="rest = rest[1:]\nset_lr(optimizer, 0.02 * len(rest) / 100)",
    ),
    in_steps(
        "time of NumPy",
        "now",
        before='now = np.datetime64("2026-02-20")',
        body="""
        now = now + np.timedelta64(1, "D")
        set_lr(optimizer, 0.005 if now > np.datetime64("2026-03-10") else 0.02)
        """,
    ),
    in_steps(
        "precision that is chosen",
        "precision",
        before="precision = torch.float32",
        loss="""
        if step == 8:
            precision = torch.bfloat16
        loss = nn.functional.mse_loss(model(a.to(precision).float()), b)
        """,
    ),
    in_steps(
        "window as a tuple of records",
        "recent",
        top="""
        from typing import NamedTuple


        class Seen(NamedTuple):
            step: int
            loss: float
        """,
        before="recent = ()",
        body="""
        recent = (*recent[-9:], Seen(step, loss.item()))
        set_lr(optimizer, 0.02 / (1 + sum(seen.loss for seen in recent)))
        """,
    ),
    in_steps(
        "list of data classes",
        "recent",
        top="""
        @dataclass
        class Seen:
            step: int
            loss: float
        """,
        before="recent = []",
        body="""
        recent.append(Seen(step, loss.item()))
        set_lr(optimizer, 0.02 / (1 + sum(seen.loss for seen in recent[-10:])))
        """,
    ),
    in_steps(
        "object of the script in a dict",
        "meters",
        top="""
        class Meter:
            def __init__(self):
                self.total = 0.0
        """,
        before='meters = {"loss": Meter()}',
        body='meters["loss"].total += loss.item()\nset_lr(optimizer, 0.02 / (1 + meters["loss"].total / 30))',
    ),
    in_steps(
        "loss function that is chosen",
        "criterion",
        before="criterion = nn.functional.l1_loss",
        loss="""
        loss = criterion(model(a), b)
        if step == 8:
            criterion = nn.functional.mse_loss
        """,
    ),
)
