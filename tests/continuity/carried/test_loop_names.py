"""What a loop carries, found in its source: which names are live, which of them decide more than what is shown."""

from __future__ import annotations

from textwrap import dedent

import pytest

from segue.continuity.carried.carried_sentences import ITERATOR, OF_CODE, fix_of
from segue.continuity.carried.loop_names import CarriedName, Running, names_in_loops
from segue.continuity.carried.reading import flows_of
from segue.continuity.carried.source import functions_of


@pytest.fixture
def carried(tmp_path):
    """The carried names of the function with the training loop, and those that decide what follows."""

    def look(text, function="train"):
        file = tmp_path / "script.py"
        file.write_text(dedent(text))
        functions_of.cache_clear()
        lines = file.read_text().splitlines()
        line = next(number for number, each in enumerate(lines, 1) if "run." in each and each.strip().startswith("for"))
        found = next(each for each in functions_of(str(file)) if each.name == function)
        first = getattr(found.node, "lineno", 0)
        names = names_in_loops(Running(str(file), function, first, line), flows_of([str(file)]))
        rebound = {name.name: name for name in names.carried.values() if name.is_rebound}
        return set(rebound), {name.name for name in rebound.values() if name.counts}

    return look


@pytest.mark.parametrize(
    ("before", "body", "after", "live", "counts"),
    [
        ("total = 0.0", "total += loss.item()", "return total / 8", {"total"}, {"total"}),
        ("total = 0.0", "total += loss.item()", "print(total / 8)", {"total"}, set()),
        ("total = 0.0", "total += loss.item()\nprint(f'{total:.2f}')", "", {"total"}, set()),
        ("total = 0.0", "total += loss.item()\nscheduler.step(total)", "", {"total"}, {"total"}),
        ("n = 0", "n += 1\nif n == 5:\n    group['lr'] *= 0.1", "", {"n"}, {"n"}),
        ("n = 0", "n += 1\nif n % 5 == 0:\n    print(n)", "", {"n"}, set()),
        ("h = None", "y, h = model(x, h)\ny.sum().backward()", "", {"h"}, {"h"}),
        ("t0 = time.time()", "t1 = time.time()\nprint(t1 - t0)\nt0 = t1", "", {"t0"}, set()),
        ("t0 = time.time()", "if time.time() - t0 > 60:\n    save(model)\n    t0 = time.time()", "", {"t0"}, set()),
        ("best = 9.9", "if loss.item() < best:\n    best = loss.item()\n    save(model)", "", {"best"}, {"best"}),
        (
            "best = 9.9",
            "if loss.item() < best:\n    best = loss.item()\nlog.info('best %s', best)",
            "",
            {"best"},
            set(),
        ),
        ("last = None", "last = loss.item()\nprint(last)", "", set(), set()),
        ("loss = None", "for part in parts:\n    loss = model(part)\nloss.backward()", "", set(), set()),
        ("n = 0", "n = 0\nfor part in parts:\n    n += 1\nmodel.scale(n)", "", set(), set()),
        ("x = draw()", "step_with(model, x)\nx = draw()", "", {"x"}, {"x"}),
        ("a, b = 1, 2", "a, b = b, a\nset_lr(a)", "", {"a", "b"}, {"a", "b"}),
        ("n = 0", "if (n := n + 1) > 5:\n    set_lr(0.1)", "", {"n"}, {"n"}),
        ("mode = 'a'", "match mode:\n    case 'a':\n        mode = 'b'\nuse(mode)", "", {"mode"}, {"mode"}),
        ("bad = 0", "bad += loss.item() > 3\nif bad > 9:\n    break", "", {"bad"}, {"bad"}),
        ("w = [1]", "w = w[-9:] + [loss.item()]\nset_lr(sum(w))", "", {"w"}, {"w"}),
        ("mean = 0.0", "mean = 0.9 * mean + 0.1 * loss.item()\nbar.set_postfix(loss=mean)", "", {"mean"}, set()),
        (
            "mean = 0.0",
            "mean = 0.9 * mean + 0.1 * loss.item()\nwriter.add_scalar('m', mean, step)",
            "",
            {"mean"},
            set(),
        ),
        ("s = 1.0", "s = 0.9 * s + probs.log().mean()\n(loss * s).backward()", "", {"s"}, {"s"}),
    ],
)
def test_a_name_is_carried_if_it_is_read_before_it_is_written_and_counts_if_it_is_not_only_shown(
    carried, before, body, after, live, counts
):
    inside = "\n".join("        " + line for line in body.splitlines())
    text = (
        f"def train(model, scheduler):\n    {before}\n    for step in run.steps(9):\n{inside}\n    {after or 'pass'}\n"
    )
    assert carried(text + "\nlog_mean = train(None, None)\ngroup['lr'] = log_mean\n") == (live, counts)


def test_what_a_function_returns_counts_by_what_its_caller_does_with_it(carried):
    text = """
    def train():
        total = 0.0
        for x in run.batches(loader):
            total += loss.item()
        return total


    mean = train()
    {use}
    """
    assert carried(text.format(use="print(mean)")) == ({"total"}, set())
    assert carried(text.format(use="scheduler.step(mean)")) == ({"total"}, {"total"})


def test_what_an_epoch_writes_is_carried_at_the_safe_points_of_its_batches(carried):
    text = """
    def train():
        rate, best = 0.1, 9.9
        for epoch in run.epochs(9):
            total = 0.0
            for x in run.batches(loader):
                total += loss.item()
            rate = rate * 0.7
            set_lr(rate)
            if total < best:
                best = total
                save(model)
    """
    at_batches = text.replace("run.epochs", "all_epochs")  # The fixture looks at the first loop over `run`.
    assert carried(at_batches) == ({"rate", "best", "total"}, {"rate", "best", "total"})
    assert carried(text) == ({"rate", "best"}, {"rate", "best"})


def test_a_closure_carries_what_it_changes(carried):
    text = """
    def train():
        calls = 0

        def weight():
            nonlocal calls
            calls += 1
            return 0.5 if calls > 30 else 1.0

        for step in run.steps(9):
            (loss * weight()).backward()
    """
    assert carried(text) == ({"calls"}, {"calls"})


def test_a_users_class_that_only_prints_does_not_make_its_arguments_count(carried):
    text = """
    class Meter:
        def update(self, value):
            self.value = value

        def show(self):
            print(self.value)


    def train():
        meter, total = Meter(), 0.0
        for step in run.steps(9):
            total += loss.item()
            meter.update(total)
            meter.show()
    """
    assert carried(text) == ({"total"}, set())
    library = text.replace("class Meter", "class Other").replace("meter.update", "meter.step")
    assert carried(library) == ({"total"}, {"total"})


def test_a_property_is_read_like_a_method_and_set_like_one(carried):
    text = """
    class Meter:
        @property
        def mean(self):
            return self.kept

        @mean.setter
        def mean(self, value):
            self.kept = value


    def train():
        meter, total = Meter(), 0.0
        for step in run.steps(9):
            total += loss.item()
            meter.mean = total
            print(meter.mean)
    """
    assert carried(text) == ({"total"}, set())
    assert carried(text.replace("print(meter.mean)", "set_lr(meter.kept)")) == ({"total"}, {"total"})


def test_a_fix_says_of_each_variable_what_can_be_done():
    place = {"function": "main", "file": "t.py", "line": 6, "loop_line": 4, "is_global": False, "is_of_process": False}
    seen = {"is_rebound": True, "is_used": True, "is_bound": True}
    names = [CarriedName(name=name, **place, **seen) for name in ("total", "rates", "loss_of")]
    kinds = {"main:total": "float", "main:rates": ITERATOR, "main:loss_of": OF_CODE}
    fix = fix_of(names, kinds=kinds, lasting=(), session="run", taken=())
    assert "compute the values of rates from the step number" in fix
    assert "choose loss_of by the step number or by a name" in fix
    assert 'main_carries = run.carry("main_carries", total=total)' in fix
