"""Kinds of values within namespaces and mixed collections. Most act only after the replayed steps."""

from __future__ import annotations

from benchmarks.continuity.carried.kind import Kind, in_steps

KINDS: tuple[Kind, ...] = (
    in_steps(
        "property of an object",
        "tuner",
        "_rate",
        top="""
        class Tuner:
            def __init__(self):
                self._rate = 0.02

            @property
            def rate(self):
                return self._rate

            @rate.setter
            def rate(self, value):
                self._rate = value
        """,
        before="tuner = Tuner()",
        body="""
        tuner.rate = tuner.rate * 0.97
        set_lr(optimizer, tuner.rate)
        """,
    ),
    in_steps(
        "namespace that a tracked object refers to",
        "patience",
        top="""
        import argparse

        class Trainer:
            def __init__(self, args):
                self.args, self.seen = args, 0

            def state_dict(self):
                return {"seen": self.seen}

            def load_state_dict(self, found):
                self.seen = found["seen"]
        """,
        before="""
        args = argparse.Namespace(patience=0)
        trainer = Trainer(args)
        run.track(trainer=trainer)
        """,
        body="""
        args.patience += 1
        set_lr(optimizer, 0.02 if args.patience < 36 else 0.001)
        """,
    ),
    in_steps(
        "dict of objects and numbers, with an attribute of its name",
        "config",
        "bad",
        before="config = {'model': model, 'bad': 0, 'lr': run.config.get('lr', 0.02)}",
        body="""
        config["bad"] += 1
        set_lr(optimizer, config["lr"] if config["bad"] < 36 else 0.001)
        """,
    ),
    in_steps(
        "UserDict of objects and numbers",
        "held",
        before="held = collections.UserDict(model=model, bad=0)",
        body="""
        print(sum(p.data.norm().item() for p in model.parameters()))
        held["bad"] += 1
        set_lr(optimizer, 0.02 if held["bad"] < 36 else 0.001)
        """,
    ),
    in_steps(
        "namespace called like a time",
        "runtime",
        before="runtime = SimpleNamespace(total=0.0)",
        body="""
        runtime.total += 1.0
        set_lr(optimizer, 0.02 if runtime.total < 36 else 0.001)
        """,
    ),
)
