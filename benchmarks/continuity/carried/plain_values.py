"""Numbers, strings and tensors in variables of a loop over steps."""

from __future__ import annotations

from benchmarks.continuity.carried.kind import Kind, at_top, in_steps

KINDS: tuple[Kind, ...] = (
    in_steps(
        "sum of losses sets the rate",
        "total",
        before="total = 0.0",
        body="total += loss.item()\nset_lr(optimizer, 0.02 / (1 + total / 50))",
    ),
    in_steps(
        "counter with milestones",
        "updates",
        before="updates = 0",
        body="updates += 1\nif updates in (25, 35):\n    set_lr(optimizer, 0.002)",
    ),
    in_steps(
        "moving average weighs the loss",
        "smooth",
        before="smooth = None",
        loss="smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()\nloss = loss / smooth",
    ),
    in_steps(
        "moving average used late",
        "smooth",
        before="smooth = 1.0",
        body="smooth = 0.9 * smooth + 0.1 * loss.item()\nif step >= 35:\n    set_lr(optimizer, 0.01 * smooth)",
    ),
    in_steps(
        "best loss and patience",
        "best",
        "bad",
        before='best = float("inf")\nbad = 0',
        body="""
        value = loss.item()
        if value < best:
            best = value
            bad = 0
        else:
            bad += 1
        if bad == 12:
            bad = 0
            set_lr(optimizer, 0.005)
        """,
    ),
    in_steps(
        "hidden state of an RNN",
        "hidden",
        before="cell = nn.GRUCell(8, 8)\nhidden = torch.zeros(16, 8)\nrun.track(cell=cell)",
        loss="hidden = cell(a, hidden.detach())\nloss = loss + 0.1 * hidden.square().mean()",
    ),
    in_steps(
        "hidden and cell state of an LSTM",
        "state",
        before="cell = nn.LSTMCell(8, 8)\nstate = (torch.zeros(16, 8), torch.zeros(16, 8))\nrun.track(cell=cell)",
        loss="""
        state = cell(a, tuple(each.detach() for each in state))
        loss = loss + 0.1 * state[0].square().mean()
        """,
    ),
    in_steps(
        "loss of the step before",
        "previous",
        before="previous = None",
        loss="""
        if previous is not None and loss.item() > previous:
            loss = loss * 0.5
        """,
        body="previous = loss.item()",
    ),
    in_steps(
        "string that names the phase",
        "phase",
        before='phase = "warm"',
        body="""
        if phase == "warm" and loss.item() < 8.5:
            phase = "main"
        set_lr(optimizer, 0.002 if phase == "warm" else 0.01)
        """,
    ),
    in_steps(
        "flag that is set once",
        "dropped",
        before="dropped = False",
        body="""
        if step == 5 and not dropped:
            dropped = True
        if dropped and step > 33:
            set_lr(optimizer, 0.001)
        """,
    ),
    in_steps(
        "batch that is drawn ahead",
        "ahead",
        before="ahead = draw()",
        loss="a, b = ahead\nloss = nn.functional.mse_loss(model(a), b)\nahead = draw()",
    ),
    in_steps(
        "position in the data",
        "position",
        before="position = 0",
        loss="""
        a, b = x[position : position + 16], y[position : position + 16]
        loss = nn.functional.mse_loss(model(a), b)
        position = (position + 16) % 96
        """,
    ),
    in_steps(
        "two numbers that swap",
        "low",
        "high",
        before="low, high = 0.001, 0.02",
        body="low, high = high, 0.99 * low\nset_lr(optimizer, low + 0.001)",
    ),
    in_steps("rate that decays", "rate", before="rate = 0.02", body="rate *= 0.98\nset_lr(optimizer, rate)"),
    in_steps(
        "temperature in an expression",
        "temperature",
        before="temperature = 2.0",
        loss="""
        loss = loss + 0.01 * torch.softmax(model(a) / temperature, 0).max()
        temperature = max(0.5, temperature * 0.97)
        """,
    ),
    in_steps(
        "controller of a weight",
        "beta",
        before="beta = 0.1",
        loss="""
        penalty = model(a).square().mean()
        beta = beta * 1.02 if penalty.item() > 0.3 else beta / 1.02
        loss = loss + beta * penalty
        """,
    ),
    in_steps(
        "loss scale by hand",
        "scale",
        "good",
        before="scale, good = 8.0, 0",
        loss="loss = loss * (scale / 8.0)",
        body="""
        good += 1
        if good == 15:
            scale, good = scale * 2, 0
        """,
    ),
    in_steps(
        "count in an assignment expression",
        "seen",
        before="seen = 0",
        body="if (seen := seen + len(a)) > 500:\n    set_lr(optimizer, 0.001)",
    ),
    in_steps(
        "state machine",
        "mode",
        before='mode = "a"',
        body="""
        match mode:
            case "a":
                mode = "b"
            case "b":
                mode = "c"
            case _:
                mode = "a"
        set_lr(optimizer, {"a": 0.01, "b": 0.02, "c": 0.005}[mode])
        """,
    ),
    in_steps(
        "count of bad steps in a handler",
        "failures",
        before="failures = 0",
        body="""
        try:
            if loss.item() > 5:
                raise ArithmeticError
        except ArithmeticError:
            failures += 1
        set_lr(optimizer, 0.02 / (1 + failures))
        """,
    ),
    in_steps(
        "NumPy scalar",
        "mean",
        before="mean = np.float64(0.0)",
        body="mean = np.float64(0.9) * mean + 0.1 * loss.item()\nset_lr(optimizer, float(0.01 + 0.001 * mean))",
    ),
    in_steps(
        "tensor with a running mean, rebound",
        "mean",
        before="mean = torch.zeros(8)",
        loss="mean = 0.9 * mean + 0.1 * a.mean(0)\nloss = nn.functional.mse_loss(model(a - mean), b)",
    ),
    in_steps(
        "tensor that is changed in place",
        "mean",
        before="mean = torch.zeros(8)",
        loss="mean.mul_(0.9).add_(a.mean(0), alpha=0.1)\nloss = nn.functional.mse_loss(model(a - mean), b)",
    ),
    in_steps(
        "array that is changed in place",
        "counts",
        before="counts = np.ones(4)",
        loss="counts[step % 4] += loss.item()\nloss = loss / float(counts[(step + 1) % 4])",
    ),
    in_steps(
        "count of a generator's turns",
        "turn",
        before="turn = 0",
        body="""
        turn = (turn + 1) % 7
        set_lr(optimizer, 0.004 if turn == 0 else 0.02)
        """,
    ),
    at_top(
        "sum at the top level",
        "total",
        before="total = 0.0",
        body="total += loss.item()\nset_lr(optimizer, 0.02 / (1 + total / 50))",
    ),
    at_top(
        "batch ahead at the top level",
        "nxt",
        before="nxt = draw()",
        loss="a, b = nxt\nloss = nn.functional.mse_loss(model(a), b)\nnxt = draw()",
    ),
    at_top(
        "hidden state at the top level",
        "h",
        before="cell = nn.GRUCell(8, 8)\nrun.track(cell=cell)\nh = None",
        loss="h = cell(a, h.detach() if h is not None else None)\nloss = loss + 0.1 * h.square().mean()",
    ),
    at_top(
        "best loss at the top level, saved to a file",
        "best",
        before="best = 1e9",
        body="if loss.item() < best:\n    best = loss.item()\n    torch.save(model.state_dict(), '/dev/null')",
    ),
)
