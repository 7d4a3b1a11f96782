"""Kinds of values within namespaces and mixed collections. Most act only after the replayed steps."""

from __future__ import annotations

from benchmarks.continuity.carried.kind import Kind, in_steps

_STOPPER = """
        class Stopper:
            def __init__(self):
                self.refused = 0

            def rate(self):
                self.refused += 1
                return 0.02 if self.refused < 36 else 0.001
        """

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
    in_steps(
        "parsed arguments that a function changes",
        "args.patience",
        top="""
        import argparse

        def parsed():
            parser = argparse.ArgumentParser()
            parser.add_argument("--patience", type=int, default=0)
            parser.add_argument("--lr", type=float, default=0.02)
            return parser.parse_args([])

        def validate(options, optimizer):
            options.patience = options.patience + 1
            if options.patience > 36:
                set_lr(optimizer, options.lr / 10)
        """,
        before="args = parsed()",
        body="validate(args, optimizer)",
    ),
    in_steps(
        "namespace whose list a function fills",
        "state.losses",
        top="""
        def note(state, value):
            state.losses.append(value)

        def rate(state):
            return 0.02 if len(state.losses) < 36 else 0.001
        """,
        before="state = SimpleNamespace(losses=[])",
        body="note(state, loss.item())\nset_lr(optimizer, rate(state))",
    ),
    in_steps(
        "moving average in a namespace",
        "ns.ema",
        top="""
        def note(ns, value):
            ns.ema.mul_(0.9).add_(value.detach(), alpha=0.1)
        """,
        before="ns = SimpleNamespace(ema=torch.zeros(()))",
        loss="loss = loss + (0.1 * ns.ema * model[0].weight.mean() if step > 30 else 0.0)",
        body="note(ns, loss)",
    ),
    in_steps(
        "namespace of the script",
        "seen",
        top="""
        import argparse

        options = argparse.Namespace(seen=0, lr=0.02)

        def count():
            options.seen += 1

        def rate():
            return options.lr if options.seen < 36 else 0.001
        """,
        body="count()\nset_lr(optimizer, rate())",
    ),
    in_steps(
        "namespace in a namespace, by setattr",
        "config.train.bad",
        top="""
        def note(config):
            setattr(config.train, "bad", getattr(config.train, "bad") + 1)
        """,
        before="config = SimpleNamespace(train=SimpleNamespace(bad=0))",
        body="note(config)\nset_lr(optimizer, 0.02 if config.train.bad < 36 else 0.001)",
    ),
    in_steps(
        "object in a namespace",
        "refused",
        top=_STOPPER,
        before="ns = SimpleNamespace(stopper=Stopper())",
        body="set_lr(optimizer, ns.stopper.rate())",
    ),
    in_steps(
        "object in a tuple",
        "refused",
        top=_STOPPER,
        before="parts = (model, optimizer, Stopper())",
        body="set_lr(parts[1], parts[2].rate())",
    ),
    in_steps(
        "list of callbacks in a namespace",
        "refused",
        top=_STOPPER,
        before="ns = SimpleNamespace(callbacks=[Stopper()])",
        body="for each in ns.callbacks:\n    set_lr(optimizer, each.rate())",
    ),
    in_steps(
        "averaged model in a namespace",
        "averaged",
        top="""
        def average(ns, model):
            with torch.no_grad():
                for mean, value in zip(ns.averaged.parameters(), model.parameters()):
                    mean.mul_(0.9).add_(value, alpha=0.1)
        """,
        before="ns = SimpleNamespace(averaged=copy.deepcopy(model))",
        loss="loss = loss + (0.1 * (ns.averaged(a) - model(a)).pow(2).mean() if step > 30 else 0.0)",
        body="average(ns, model)",
    ),
)

SOUND: tuple[Kind, ...] = (
    in_steps(
        "arguments with a best loss and a count for a log line",
        top="""
        import argparse

        def parsed():
            parser = argparse.ArgumentParser()
            parser.add_argument("--lr", type=float, default=0.02)
            args = parser.parse_args([])
            args.best_loss, args.global_step, args.current_lr = 9.0, 0, 0.0
            return args

        def show(args, value):
            args.best_loss = min(args.best_loss, value)
            args.global_step += 1
            print(args.global_step, args.best_loss)

        def adjust(optimizer, step, args):
            args.current_lr = args.lr * 0.5 ** (step // 10)
            set_lr(optimizer, args.current_lr)
        """,
        before="args = parsed()",
        body="show(args, loss.item())\nadjust(optimizer, step, args)",
    ),
    in_steps(
        "namespace of the model, the optimizer and a loss",
        top="""
        def update(ns, a, b):
            ns.loss = nn.functional.mse_loss(ns.model(a), b)
            ns.optimizer.zero_grad()
            ns.loss.backward()
            ns.optimizer.step()
            ns.seconds += time.time() - ns.since
            ns.since = time.time()
        """,
        before="ns = SimpleNamespace(model=model, optimizer=optimizer, loss=None, seconds=0.0, since=time.time())",
        body="update(ns, a, b)\nprint(ns.loss.item(), ns.seconds)",
    ),
    in_steps(
        "namespace whose count is registered",
        top="""
        def note(state):
            state.bad += 1
        """,
        before="state = SimpleNamespace(bad=0)\nrun.track_variables(vars(state), 'bad')",
        body="note(state)\nset_lr(optimizer, 0.02 if state.bad < 36 else 0.001)",
    ),
    in_steps(
        "object in a tuple that is registered, and one made anew in a namespace",
        top=_STOPPER
        + """
        @dataclass
        class Batch:
            rows: object
            wanted: object

            def loss(self, model):
                return nn.functional.mse_loss(model(self.rows), self.wanted)

        def loss_of(ns, rows, wanted):
            ns.batch = Batch(rows, wanted)
            return ns.batch.loss(ns.model)
        """,
        before="ns, parts = SimpleNamespace(model=model, batch=None), (model, Stopper())\nrun.track(stopper=parts[1])",
        loss="loss = loss_of(ns, a, b)",
        body="set_lr(optimizer, parts[1].rate())",
    ),
    in_steps(
        "meters with properties, in a namespace and in a tuple, that are only printed",
        top="""
        class Meter:
            def __init__(self):
                self.summed, self.counted = 0.0, 0

            def update(self, value):
                self.summed += value
                self.counted += 1

            @property
            def mean_of_all(self):
                return self.summed / max(self.counted, 1)
        """,
        before="ns, meters, alone = SimpleNamespace(meter=Meter()), (Meter(), Meter()), Meter()",
        body="""
        for meter in (ns.meter, meters[0], alone):
            meter.update(loss.item())
        print(ns.meter.mean_of_all, meters[0].mean_of_all, f"{alone.mean_of_all:.3f}")
        """,
    ),
)
"""Programs that lose nothing in their namespaces."""
