"""A script of the benchmark with a training loop of its own: `python program.py RECIPE [LINES]`.

LINES is a JSON list of the values that a fix tracks. Each has a module to import, a name and an expression.
"""

from __future__ import annotations

import importlib
import json
import sys

import segue


def main() -> None:
    """Train the result of the recipe function, like a program that was written without recipes."""
    module, _, name = sys.argv[1].partition(":")
    made = getattr(importlib.import_module(module), name)({})
    model, optimizer, loss, after_step = made.model, made.optimizer, made.loss, made.after_step
    with segue.session() as run:
        schedulers = {"scheduler": made.scheduler} if made.scheduler is not None else {}
        run.track(model=model, optimizer=optimizer, **schedulers, **made.extra)
        batches = run.batches(made.data)
        for module, name, value in json.loads(sys.argv[2]) if len(sys.argv) > 2 else ():
            known = {module.partition(".")[0]: importlib.import_module(module.partition(".")[0])} if module else {}
            run.track(**{name: eval(value, globals(), {**locals(), **known})})  # noqa: S307 - what segue itself printed
        for step in run.steps():
            value = loss(model, next(batches))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            if made.scheduler is not None:
                made.scheduler.step()
            if after_step is not None:
                after_step(step)
            run.report(loss=value)


if __name__ == "__main__":
    main()
