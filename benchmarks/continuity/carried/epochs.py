"""Values that a program carries over the batches of an epoch, and from one epoch to the next."""

from __future__ import annotations

from benchmarks.continuity.carried.kind import Kind, in_epochs, whole

_PLATEAU = """
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
run.track(scheduler=scheduler)
"""
_IN_FUNCTION = """
def train(model, loader, optimizer):
    {init}
    for a, b in run.batches(loader):
        loss = nn.functional.mse_loss(model(a), b)
        learn(optimizer, loss)
        run.report(loss=loss)
        {body}
    return {result}


def main():
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    for epoch in run.epochs(6):
        scheduler.step(train(model, loader, optimizer))


with segue.session() as run:
    main()
"""

KINDS: tuple[Kind, ...] = (
    in_epochs(
        "sum of an epoch for a scheduler",
        "total",
        before=_PLATEAU,
        begin="total = 0.0",
        body="total += loss.item()",
        end="scheduler.step(total / len(loader))",
    ),
    whole(
        "sum of an epoch in a function",
        "total",
        source=_IN_FUNCTION.format(init="total = 0.0", body="total += loss.item()", result="total / len(loader)"),
    ),
    whole(
        "count and sum in a function",
        "total",
        "count",
        source=_IN_FUNCTION.format(
            init="total, count = 0.0, 0",
            body="total, count = total + loss.item() * len(a), count + len(a)",
            result="total / count",
        ),
    ),
    whole(
        "list of losses in a function",
        "losses",
        source=_IN_FUNCTION.format(
            init="losses = []", body="losses.append(loss.item())", result="sum(losses) / len(losses)"
        ),
    ),
    whole(
        "tensor sum in a function",
        "total",
        source=_IN_FUNCTION.format(
            init="total = torch.zeros(())", body="total = total + loss.detach()", result="(total / len(loader)).item()"
        ),
    ),
    whole(
        "worst batch of an epoch",
        "worst",
        source=_IN_FUNCTION.format(init="worst = 0.0", body="worst = max(worst, loss.item())", result="worst"),
    ),
    whole(
        "dict of sums",
        "sums",
        source=_IN_FUNCTION.format(
            init='sums = {"loss": 0.0}', body='sums["loss"] += loss.item()', result='sums["loss"] / len(loader)'
        ),
    ),
    whole(
        "array of losses",
        "values",
        source=_IN_FUNCTION.format(
            init="values = np.zeros(0)", body="values = np.append(values, loss.item())", result="float(values.mean())"
        ),
    ),
    in_epochs(
        "best epoch and early stop",
        "total",
        "best",
        "bad",
        before="best, bad = 1e9, 0",
        begin="total = 0.0",
        body="total += loss.item()",
        end="""
        if total < best:
            best, bad = total, 0
        else:
            bad += 1
        if bad >= 3:
            run.finish("no better")
        """,
    ),
    in_epochs(
        "rate that an epoch lowers",
        "rate",
        before="rate = 0.02",
        end="rate = rate * 0.7\nset_lr(optimizer, rate)",
    ),
    in_epochs(
        "means of epochs in a list",
        "means",
        before="means = []",
        begin="total = 0.0",
        body="total += loss.item()",
        end="means.append(total / 6)\nset_lr(optimizer, 0.02 / (1 + sum(means)))",
    ),
    in_epochs(
        "accuracy decides the rate",
        "right",
        begin="right, count = 0, 0",
        body="right += int((loss < 5).sum())\ncount += 1",
        end="set_lr(optimizer, 0.02 if right / count > 0.5 else 0.005)",
    ),
    in_epochs(
        "matrix of errors weighs classes",
        "matrix",
        begin="matrix = torch.ones(2, 2)",
        body="matrix[int(loss.item() > 4), int(a.sum() > 0)] += 1",
        end="set_lr(optimizer, float(0.02 * matrix[0, 0] / matrix.sum() + 0.001))",
    ),
    in_epochs(
        "hidden state over batches",
        "hidden",
        before="cell = nn.GRUCell(8, 8)\nrun.track(cell=cell)",
        begin="hidden = torch.zeros(16, 8)",
        loss="hidden = cell(a, hidden.detach())\nloss = loss + 0.1 * hidden.square().mean()",
    ),
    in_epochs(
        "curriculum that grows",
        "width",
        before="width = 2",
        begin="total = 0.0",
        loss="mask = (torch.arange(8) < width).float()\nloss = nn.functional.mse_loss(model(a * mask), b)",
        body="total += loss.item()",
        end="width = min(8, width + 1)",
    ),
    in_epochs(
        "generator turns of a GAN",
        "turns",
        before="turns = 0",
        body="turns += 1\nset_lr(optimizer, 0.004 if turns % 5 == 0 else 0.02)",
    ),
    in_epochs(
        "number of the step, counted by hand",
        "number",
        before="number = 0",
        body="number += 1\nset_lr(optimizer, 0.02 * 0.97**number)",
    ),
    in_epochs(
        "loss of the epoch before",
        "last",
        before="last = None",
        begin="total = 0.0",
        body="total += loss.item()",
        end="if last is not None and total > 0.8 * last:\n    set_lr(optimizer, 0.004)\nlast = total",
    ),
)
