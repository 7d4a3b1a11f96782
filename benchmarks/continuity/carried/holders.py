"""Collections, objects, closures and functions that a loop over steps changes."""

from __future__ import annotations

from benchmarks.continuity.carried.kind import Kind, at_top, in_steps, whole

_METHOD = """
class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        {init}

    def fit(self):
        for step in run.steps(40):
            a, b = draw()
            loss = nn.functional.mse_loss(self.model(a), b)
            learn(self.optimizer, loss)
            run.report(loss=loss)
            {body}


with segue.session() as run:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    run.track(model=model, optimizer=optimizer)
    Trainer(model, optimizer).fit()
"""

KINDS: tuple[Kind, ...] = (
    in_steps(
        "window of losses in a list",
        "window",
        before="window = []",
        body="window.append(loss.item())\nset_lr(optimizer, 0.02 / (1 + sum(window[-20:])))",
    ),
    in_steps(
        "window that is cut and rebound",
        "window",
        before="window = [1.0]",
        body="window = window[-9:] + [loss.item()]\nset_lr(optimizer, 0.02 / (1 + sum(window)))",
    ),
    in_steps(
        "dict of statistics",
        "stats",
        before='stats = {"sum": 0.0, "n": 0}',
        body='stats["sum"] += loss.item()\nstats["n"] += 1\nset_lr(optimizer, 0.02 / (1 + stats["sum"] / 30))',
    ),
    in_steps(
        "dict that is made anew",
        "stats",
        before='stats = {"sum": 0.0}',
        body='stats = {**stats, "sum": stats["sum"] + loss.item()}\nset_lr(optimizer, 0.02 / (1 + stats["sum"] / 30))',
    ),
    in_steps(
        "counts by class",
        "counts",
        before="counts = Counter()",
        body='counts["high" if loss.item() > 4 else "low"] += 1\nset_lr(optimizer, 0.02 / (1 + counts["high"]))',
    ),
    in_steps(
        "set of what was seen",
        "seen",
        before="seen = set()",
        body="seen.add(round(loss.item(), 1))\nset_lr(optimizer, 0.02 / (1 + len(seen)))",
    ),
    in_steps(
        "replay buffer of tensors",
        "buffer",
        before="buffer = []",
        loss="""
        buffer.append((a[:4], b[:4]))
        if len(buffer) > 12:
            old_a, old_b = buffer[int(torch.randint(len(buffer), (1,)))]
            loss = loss + 0.5 * nn.functional.mse_loss(model(old_a), old_b)
        """,
    ),
    in_steps(
        "cache of values by key",
        "table",
        before="table = {}",
        loss="key = step % 5\nloss = loss + 0.01 * table.get(key, 0.0)\ntable[key] = loss.item()",
    ),
    in_steps(
        "average of weights in a dict",
        "average",
        before="average = {n: p.detach().clone() for n, p in model.named_parameters()}",
        loss="""
        for n, p in model.named_parameters():
            average[n] = 0.9 * average[n] + 0.1 * p.detach()
            loss = loss + 0.1 * (p - average[n]).square().sum()
        """,
    ),
    in_steps(
        "nested lists",
        "rows",
        before="rows = [[0.0, 0.0], [0.0, 0.0]]",
        body="rows[step % 2][0] += loss.item()\nset_lr(optimizer, 0.02 / (1 + rows[0][0] + rows[1][0]))",
    ),
    in_steps(
        "variable of a closure",
        "calls",
        before="""
        calls = 0

        def weight():
            nonlocal calls
            calls += 1
            return 0.5 if calls > 30 else 1.0
        """,
        loss="loss = loss * weight()",
    ),
    in_steps(
        "global that a function changes",
        "calls",
        top="""
        calls = 0


        def weight():
            global calls
            calls += 1
            return 0.5 if calls > 30 else 1.0
        """,
        loss="loss = loss * weight()",
    ),
    in_steps(
        "global list that a function appends to",
        "HISTORY",
        top="""
        HISTORY = []


        def weight(value):
            HISTORY.append(value)
            return 0.5 if len(HISTORY) > 30 else 1.0
        """,
        loss="loss = loss * weight(loss.item())",
    ),
    in_steps(
        "attribute of a function",
        "weight",
        top="""
        def weight():
            weight.calls += 1
            return 0.5 if weight.calls > 30 else 1.0


        weight.calls = 0
        """,
        loss="loss = loss * weight()",
    ),
    in_steps(
        "default argument that remembers",
        "known",
        top="""
        def weight(value, known=[]):
            known.append(value)
            return 0.5 if len(known) > 30 else 1.0
        """,
        loss="loss = loss * weight(loss.item())",
    ),
    in_steps(
        "attribute of an object",
        "total",
        "meter",
        top="""
        class Meter:
            def __init__(self):
                self.total, self.count = 0.0, 0

            def update(self, value):
                self.total += value
                self.count += 1
                return self.total / self.count
        """,
        before="meter = Meter()",
        body="set_lr(optimizer, 0.02 / (1 + meter.update(loss.item())))",
    ),
    in_steps(
        "data class",
        "state",
        top="""
        @dataclass
        class State:
            total: float = 0.0
            bad: int = 0
        """,
        before="state = State()",
        body="state.total += loss.item()\nset_lr(optimizer, 0.02 / (1 + state.total / 30))",
    ),
    in_steps(
        "attribute of a class",
        "Config",
        top="""
        class Config:
            rate = 0.02
        """,
        body="Config.rate *= 0.98\nset_lr(optimizer, Config.rate)",
    ),
    in_steps(
        "generator function",
        "rates",
        top="""
        def decaying():
            rate = 0.02
            while True:
                rate *= 0.97
                yield rate
        """,
        before="rates = decaying()",
        body="set_lr(optimizer, next(rates))",
    ),
    in_steps(
        "cycle of rates",
        "rates",
        before="rates = itertools.cycle([0.02, 0.01, 0.005])",
        body="set_lr(optimizer, next(rates))",
    ),
    in_steps(
        "count of itertools",
        "numbers",
        before="numbers = itertools.count()",
        body="set_lr(optimizer, 0.02 / (1 + next(numbers)))",
    ),
    in_steps(
        "random generator of its own",
        "dice",
        before="dice = random.Random(4)",
        loss="loss = loss * dice.uniform(0.5, 1.5)",
    ),
    in_steps(
        "generator of torch",
        "noise",
        before="noise = torch.Generator().manual_seed(3)",
        loss="loss = loss + 0.1 * model(torch.randn(16, 8, generator=noise)).mean()",
    ),
    in_steps(
        "teacher network",
        "teacher",
        before="teacher = copy.deepcopy(model)",
        loss="""
        with torch.no_grad():
            wanted = teacher(a)
            for old, new in zip(teacher.parameters(), model.parameters()):
                old.lerp_(new, 0.1)
        loss = loss + 0.3 * nn.functional.mse_loss(model(a), wanted)
        """,
    ),
    whole(
        "attribute of the trainer",
        "total",
        source=_METHOD.format(
            init="self.total = 0.0",
            body="self.total += loss.item()\n            set_lr(self.optimizer, 0.02 / (1 + self.total / 30))",
        ),
    ),
    whole(
        "patience of the trainer",
        "bad",
        "best",
        source=_METHOD.format(
            init="self.best, self.bad = 1e9, 0",
            body="self.bad = 0 if loss.item() < self.best else self.bad + 1\n"
            "            self.best = min(self.best, loss.item())\n"
            "            set_lr(self.optimizer, 0.002 if self.bad > 10 else 0.02)",
        ),
    ),
    whole(
        "list of the trainer",
        "recent",
        source=_METHOD.format(
            init="self.recent = []",
            body="self.recent.append(loss.item())\n            mean = sum(self.recent[-9:])\n"
            "            set_lr(self.optimizer, 0.02 / (1 + mean))",
        ),
    ),
    at_top(
        "list at the top level",
        "history",
        before="history = []",
        body="history.append(loss.item())\nset_lr(optimizer, 0.02 / (1 + sum(history[-10:])))",
    ),
    at_top(
        "dict at the top level that a function changes",
        "STATE",
        before="""
        STATE = {"n": 0}


        def tick():
            STATE["n"] += 1
            return STATE["n"]
        """,
        body="set_lr(optimizer, 0.02 / (1 + tick()))",
    ),
)
