"""Objects of libraries that a loop carries: each is named, also if nobody can compare it, and none ends an attempt."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.continuity.carried.kind import Kind, in_steps
from benchmarks.continuity.carried.trial import outcome_of
from segue.continuity.naming import CARRIED
from segue.trainer.programs.program_outside import ProgramOutside

RATES = "''.join(f'{0.02 * 0.95**k:.8f}\\n' for k in range(60))"
COMPARED = (
    in_steps(
        "file that is read line by line",
        "lines",
        before=f"with open('rates.txt', 'w') as made:\n    made.write({RATES})\nlines = open('rates.txt')",
        body="set_lr(optimizer, float(lines.readline()))",
    ),
    in_steps(
        "text in memory",
        "lines",
        before=f"import io\nlines = io.StringIO({RATES})",
        body="set_lr(optimizer, float(lines.readline()))",
    ),
    in_steps(
        "reader of CSV",
        "rows",
        before=f"import csv\nrows = csv.reader({RATES}.splitlines())",
        body="set_lr(optimizer, float(next(rows)[0]))",
    ),
    in_steps(
        "chain of dicts",
        "found",
        before="found = collections.ChainMap({}, {'n': 0})",
        body="found['n'] = found['n'] + 1\nset_lr(optimizer, 0.02 / (1 + found['n'] / 10))",
    ),
    in_steps(
        "sparse tensor",
        "counts",
        before="counts = torch.zeros(8).to_sparse()",
        body="counts = (counts + torch.ones(8).to_sparse()).coalesce()\n"
        "set_lr(optimizer, 0.02 / (1 + float(counts.to_dense()[0]) / 10))",
    ),
    in_steps(
        "sparse tensor by rows",
        "counts",
        before="counts = torch.eye(8).to_sparse_csr()",
        body="counts = counts * 1.1\nset_lr(optimizer, 0.02 / (1 + float(counts.to_dense()[0, 0])))",
    ),
    in_steps(
        "array of records",
        "seen",
        before="seen = np.zeros(1, dtype=[('n', int), ('sum', float)])",
        body="seen['n'][0] += 1\nseen['sum'][0] += loss.item()\n"
        "set_lr(optimizer, 0.02 / (1 + seen['sum'][0] / seen['n'][0]))",
    ),
)
"""No checkpoint can hold most of them, so that the advice is in words."""
FIXED = (
    in_steps(
        "frame that grows",
        "frame",
        before="import pandas as pd\nframe = pd.DataFrame({'loss': []})",
        body="frame.loc[len(frame)] = loss.item()\nset_lr(optimizer, 0.02 / (1 + frame['loss'].mean()))",
    ),
    in_steps(
        "column that is made anew",
        "means",
        before="import pandas as pd\nmeans = pd.Series([0.0])",
        body="means = pd.concat([means, pd.Series([loss.item()])], ignore_index=True)\n"
        "set_lr(optimizer, 0.02 / (1 + means.mean()))",
    ),
    in_steps(
        "object whose equality raises",
        "mean",
        top="""
        class Mean:
            def __init__(self, value):
                self.value = value

            def __eq__(self, other):
                raise RuntimeError("not comparable")

            __hash__ = None
        """,
        before="mean = Mean(0.0)",
        body="mean = Mean(0.9 * mean.value + loss.item())\nset_lr(optimizer, 0.02 / (1 + mean.value))",
    ),
    in_steps(
        "attribute that is put on the optimizer",
        "optimizer",
        before="optimizer.bad = 0",
        body="optimizer.bad += 1\nset_lr(optimizer, 0.02 / (1 + optimizer.bad / 10))",
    ),
)
UNREAD = {
    "q (local variable in main, train.py, line 39), a Queue, whose state no checkpoint holds": in_steps(
        "queue",
        "q",
        before="import queue\nq = queue.Queue()",
        body="q.put(loss.item())\nset_lr(optimizer, 0.02 / (1 + q.qsize() / 10))",
    ),
    "db (local variable in main, train.py, line 40), a Connection, whose state no checkpoint holds": in_steps(
        "database in memory",
        "db",
        before="import sqlite3\ndb = sqlite3.connect(':memory:')\ndb.execute('create table t (v real)')",
        body="db.execute('insert into t values (?)', (loss.item(),))\n"
        "set_lr(optimizer, 0.02 / (1 + db.execute('select avg(v) from t').fetchone()[0]))",
    ),
    "h (local variable in main, train.py, line 39), a HASH, whose state no checkpoint holds": in_steps(
        "hash",
        "h",
        before="import hashlib\nh = hashlib.sha256()",
        body="h.update(bytes([step]))\nset_lr(optimizer, 0.02 * (1 + h.digest()[0] / 256))",
    ),
    "found (local variable in main, train.py, line 39), a callable_iterator, whose state no checkpoint holds": in_steps(
        "matches of a pattern",
        "found",
        before=f"import re\nfound = re.finditer('[0-9.]+', {RATES})",
        body="set_lr(optimizer, float(next(found)[0]))",
    ),
    "table (local variable in main, train.py, line 44), a Table, whose state no checkpoint holds": in_steps(
        "table of Arrow",
        "table",
        before="import pyarrow as pa\ntable = pa.table({'v': [0.0]})",
        body="table = pa.concat_tables([table, pa.table({'v': [loss.item()]})])\n"
        "set_lr(optimizer, 0.02 / (1 + sum(table['v'].to_pylist()) / table.num_rows))",
    ),
}
RAISE = {
    "values of a dict": ("dict", "values", "Bad(n=0)", "bad['n'] += 1", "bad['n']"),
    "items of a dict": ("dict", "items", "Bad(n=0)", "bad['n'] += 1", "bad['n']"),
    "iteration of a list": ("list", "__iter__", "Bad([0])", "bad[0] += 1", "bad[0]"),
    "length of a list": ("list", "__len__", "Bad([0])", "bad[0] += 1", "bad[0]"),
    "iteration of a set": ("set", "__iter__", "Bad()", "bad.add(step)", "len(bad)"),
    "iteration of a deque": ("deque", "__iter__", "Bad()", "bad.append(step)", "len(bad)"),
    "class of an object": ("", "__class__", "Bad()", "bad.n = getattr(bad, 'n', 0) + 1", "bad.n"),
}
"""Base, method, first value, change and what is read of it."""
SOUND = (
    in_steps(
        "log to which each step appends",
        before="import os\nlog_file = os.path.join('.', 'steps.log')\nwith open(log_file, 'w') as f:\n    pass",
        body="with open(log_file, 'a') as f:\n    f.write(f'{step} {loss.item()}\\n')",
    ),
    in_steps(
        "log that a constant names",
        top="LOG = 'losses.log'",
        body="with open(LOG, 'a') as f:\n    f.write(f'{step} {loss.item()}\\n')",
    ),
    in_steps(
        "file with the last metrics",
        before="import json\nfrom pathlib import Path\nlast = Path('metrics.json')",
        body="last.write_text(json.dumps(loss.item()))",
    ),
    in_steps(
        "log that can be read too",
        before="log = open('log.csv', 'w+')\nimport csv\nrows = csv.writer(log)",
        body="rows.writerow([step, loss.item()])\nlog.flush()",
    ),
    in_steps(
        "file that is read where the step says",
        before=f"with open('rates.txt', 'w') as made:\n    made.write({RATES})\nlines = open('rates.txt')",
        body="lines.seek(step * 11)\nset_lr(optimizer, float(lines.readline()))",
    ),
    in_steps(
        "hash of each batch for a log line",
        before="import hashlib\nh = hashlib.md5()",
        body="h.update(a.numpy().tobytes())\nprint(h.hexdigest())",
    ),
    in_steps(
        "queue of a thread that writes the log",
        before="import queue, threading\nq = queue.Queue()\nlog = open('log.txt', 'w')\n\ndef drain():\n"
        "    while True:\n        log.write(str(q.get()))\n\nthreading.Thread(target=drain, daemon=True).start()",
        body="q.put(loss.item())",
    ),
    in_steps(
        "settings in a chain of dicts",
        before="config = collections.ChainMap({}, {'lr': 0.02})",
        body="set_lr(optimizer, config['lr'])",
    ),
    in_steps(
        "table in a database",
        before="import sqlite3\ndb = sqlite3.connect('log.db')\ndb.execute('create table if not exists t (v real)')",
        body="db.execute('insert into t values (?)', (loss.item(),))\ndb.commit()",
    ),
)

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # They leave their files open.
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning"),
]


def named(kinds: tuple[Kind, ...]) -> list[object]:
    return [pytest.param(kind, id=kind.name) for kind in kinds]


@pytest.mark.parametrize("kind", named(COMPARED))
def test_an_object_that_was_lost_is_named_at_the_commit_and_at_the_resume(kind):
    outcome = outcome_of(kind, resumes=1, with_fix=False)
    assert (outcome.verdicts, outcome.problem) == (("broken",), "")
    assert outcome.is_named
    assert outcome.is_named_at_commit, outcome.commits


@pytest.mark.parametrize("kind", named(FIXED))
def test_with_its_fix_the_resume_is_exact(kind):
    outcome = outcome_of(kind, resumes=1)
    assert (outcome.verdicts, outcome.is_named, outcome.is_named_at_commit) == (("broken",), True, True), outcome
    assert outcome.is_fix_enough, (outcome.commits, outcome.fixed)


@pytest.mark.parametrize(("sentence", "kind"), [pytest.param(*each, id=each[1].name) for each in UNREAD.items()])
def test_what_cannot_be_compared_is_named_if_the_replay_differs(sentence, kind):
    outcome = outcome_of(kind, resumes=1, with_fix=False)
    assert (outcome.verdicts, outcome.problem) == (("broken",), "")
    assert sentence in outcome.sentences[0]
    assert "no checkpoint can hold such an object: store the content" in outcome.sentences[0]


@pytest.mark.parametrize("kind", named(SOUND))
def test_what_is_for_people_or_follows_from_the_step_is_exact(kind):
    outcome = outcome_of(kind, resumes=1)
    assert (outcome.verdicts, outcome.commits, outcome.problem) == (("exact",), (), "")


@pytest.mark.parametrize(("base", "method", "first", "change", "read"), RAISE.values(), ids=RAISE)
def test_an_object_that_raises_when_it_is_looked_at_ends_no_attempt(base, method, first, change, read):
    what = "@property\n    " if method == "__class__" else ""
    top = f"class Bad({base}):\n    {what}def {method}(self, *given):\n        raise RuntimeError('do not look')\n"
    body = f"{change}\nset_lr(optimizer, 0.02 / (1 + {read} / 10))"
    kind = in_steps("raises", "bad", top=top, before=f"bad = {first}", body=body)
    outcome = outcome_of(kind, resumes=1, with_fix=False)
    assert (outcome.verdicts, outcome.problem) == (("broken",), "")
    assert "bad (" in outcome.sentences[0]


def test_a_loss_that_acts_after_the_replay_is_no_silent_one():
    kind = in_steps(
        "queue that is used late",
        "q",
        before="import queue\nq = queue.Queue()",
        body="q.put(loss.item())\nif step > 30:\n    set_lr(optimizer, 0.02 / (1 + q.qsize() / 10))",
    )
    outcome = outcome_of(kind, resumes=1)
    assert outcome.verdicts == ("exact",)  # Nobody can tell that it is another one.
    assert outcome.sentences[0].endswith(
        "q (local variable in main, train.py, line 39), a Queue, whose state no checkpoint holds"
    )


def test_a_comparison_that_fails_proves_nothing_and_ends_nothing():
    def fail(_):
        raise ValueError("no truth value")

    outside = ProgramOutside.__new__(ProgramOutside)
    outside._loops = SimpleNamespace(look=fail, lost=fail)
    assert outside._looked({}) == ()
    (finding,) = outside._lost({})
    assert finding.channel == CARRIED  # With it, a verdict is at best unverified.
    assert finding.sentence == "carried values could not be compared (ValueError: no truth value)"
    assert "traceback" in finding.fix
