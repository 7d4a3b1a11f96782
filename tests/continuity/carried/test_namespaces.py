"""Attributes of a namespace that functions change: which of them are carried, and which decide what follows."""

from __future__ import annotations

from textwrap import dedent

import pytest

from segue.continuity.carried.carried_sentences import fix_of
from segue.continuity.carried.loop_names import Running
from segue.continuity.carried.namespaces import NamespaceFlows
from segue.continuity.carried.reading import flows_of
from segue.continuity.carried.source import functions_of

_PROGRAM = """
{top}

def train():
    args = parse()
    for step in run.steps(9):
        loss = model(draw())
        {body}
"""


@pytest.fixture
def carried(tmp_path):
    """The carried attributes of `args`, and whether each decides what follows."""

    def look(top, body, *attributes, variable="args"):
        file = tmp_path / "script.py"
        file.write_text(_PROGRAM.format(top=dedent(top).strip(), body=body))
        functions_of.cache_clear()
        lines = file.read_text().splitlines()
        (line,) = (number for number, each in enumerate(lines, 1) if "run.steps" in each)
        (function,) = (each for each in functions_of(str(file)) if each.name == "train")
        running = Running(str(file), function.name, function.node.lineno, line)
        return list(NamespaceFlows(flows_of([str(file)])).carried(running, variable, attributes))

    return look


@pytest.mark.parametrize(
    ("function", "body", "counts"),
    [
        ("def f(args): args.bad += 1", "f(args); set_lr(0.1 if args.bad < 9 else 0.01)", True),
        ("def f(opts): opts.bad = opts.bad + 1\ndef rate(o): return o.bad", "f(args); set_lr(rate(args))", True),
        ("def g(x): x.bad += 1\ndef f(y): g(y)", "f(args); set_lr(args.bad)", True),
        ("def f(args): setattr(args, 'bad', getattr(args, 'bad') + 1)", "f(args); set_lr(args.bad)", True),
        ("def f(args): args.bad.append(1)", "f(args); set_lr(len(args.bad))", True),
        ("def f(args): args.bad['n'] += 1", "f(args); set_lr(args.bad['n'])", True),
        ("def f(args, v): args.bad = min(args.bad, v)", "f(args, loss); print(args.bad); set_lr(args.lr)", False),
        ("def f(args): args.bad += time.time()", "f(args); set_lr(args.bad)", False),
        ("def f(args): args.bad = args.lr * 2", "f(args); set_lr(args.bad)", None),
        ("def f(args): args.bad = args.model(1); args.bad.backward()", "f(args); args.optimizer.step()", None),
        ("def f(args, v): d = v - args.bad; args.bad = v; return d", "set_lr(f(args, loss))", True),
        ("def f(args, n):\n    if n == 4: args.bad = True", "f(args, step); set_lr(args.bad)", True),
        ("def f(args, n):\n    if n != 4: return\n    args.bad = True", "f(args, step); set_lr(args.bad)", True),
        ("def f(args):\n    if args.bad is None: args.bad = torch.ones(3)", "f(args); set_lr(args.bad)", None),
        ("def f(args, v):\n    if args.bad is None: args.bad = v.item()", "f(args, loss); set_lr(args.bad)", True),
        ("def log(args): args.bad += 1; print(args.bad)", "log(args); set_lr(args.lr)", False),
        ("def f(args): args.bad = draw(); args.bad += 1; set_lr(args.bad)", "f(args)", None),
        ("def f(o): o.bad = opt.groups[0] * 0.9; opt.groups.append(o.bad)", "f(args)", None),
    ],
)
def test_an_attribute_is_carried_if_its_next_value_follows_from_the_one_before(carried, function, body, counts):
    found = [each for each in carried(function, body, "bad", "lr") if each.is_change_known]
    assert [(each.name, each.counts) for each in found] == ([] if counts is None else [("args.bad", counts)])


def test_what_changes_without_a_known_statement_is_supposed_to_last(carried):
    (found,) = carried("def f(x, name): setattr(x, name, 1)", "f(args, 'bad'); set_lr(args.bad)", "bad")
    assert (found.name, found.is_change_known, found.counts) == ("args.bad", False, True)


def test_it_is_named_where_a_function_changes_it_with_a_fix_that_all_functions_share(carried):
    found = carried("def f(args):\n    args.bad += 1\n    args.n -= 1", "f(args); set_lr(args.bad, args.n)", "bad", "n")
    assert [(each.name, each.line, each.loop_line) for each in found] == [("args.bad", 3, 8), ("args.n", 4, 8)]
    fix = fix_of(found, kinds={}, lasting=(), session="run", taken=())
    assert fix == 'register it: run.track(args=segue.Variables(args, "bad", "n"))'


def test_a_namespace_in_another_one_is_followed_by_its_own_name(carried):
    found = carried("def f(args): args.opt.bad += 1", "f(args); set_lr(args.opt.bad)", "bad", variable="args.opt")
    fix = fix_of(found, kinds={}, lasting=(), session="run", taken={"opt"})
    assert fix == 'register it: run.track(args_opt=segue.Variables(args.opt, "bad"))'
