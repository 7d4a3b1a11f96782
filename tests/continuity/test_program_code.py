"""Hashes of a program's code: what counts as a change, and which files belong to the program."""

from __future__ import annotations

import pytest

from segue.continuity.program_code import program_hashes

SCRIPT = '''
"""Trains."""
import os, torch
import model
from parts.losses import mean  # the loss
from .sibling import nothing


class Net(model.Base):
    """A net."""
    width = 4

    def forward(self, x):
        """One pass."""
        return [each * 2 for each in x]


def main():
    import late
    return Net().forward([1]), mean(late.LATE)


if __name__ == "__main__":
    main()
'''
FILES = {
    "train.py": SCRIPT,
    "model.py": "import helper\n\nclass Base:\n    pass\n",
    "helper.py": "RATE = 0.1\n",
    "late.py": "LATE = [1.0]\n",
    "unused.py": "UNUSED = 1\n",
    "parts/__init__.py": "",
    "parts/losses.py": "from . import sums\nfrom ..gone import x\n\ndef mean(x):\n    return sums.total(x)\n",
    "parts/sums.py": "import train\n\ndef total(x):\n    return sum(x)\n",
}


@pytest.fixture
def hashes(tmp_path):
    """The hashes of the program with some files replaced."""

    def of(replaced=None, *, command=("python", "train.py", "--lr", "1"), folder=None):
        for name, text in (FILES | (replaced or {})).items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return program_hashes(command, folder=folder or tmp_path)

    return of


def changed(before, after):
    return {name for name in before | after if before.get(name) != after.get(name)}


def test_the_script_and_all_that_it_imports_of_the_users_counts(hashes):
    assert set(hashes()) == {
        "train.py",
        "train.py: Net",
        "train.py: Net.forward",
        "train.py: main",
        "model.py",
        "model.py: Base",
        "helper.py",
        "late.py",
        "parts/__init__.py",
        "parts/losses.py",
        "parts/losses.py: mean",
        "parts/sums.py",
        "parts/sums.py: total",
    }


@pytest.mark.parametrize(
    ("file", "old", "new", "names"),
    [
        ("train.py", '"""One pass."""', '"""Another text."""', set()),
        ("train.py", '    """A net."""\n', "", set()),
        ("train.py", "  # the loss", "", set()),
        ("train.py", "def main():\n", "\n\ndef main():\n    # says nothing\n", set()),
        ("train.py", "each * 2", "each * 3", {"train.py: Net.forward"}),
        ("train.py", "width = 4", "width = 5", {"train.py: Net"}),
        ("train.py", "def main", "BATCH = 8\ndef main", {"train.py"}),
        ("train.py", "Net().forward([1])", "Net().forward([2])", {"train.py: main"}),
        ("helper.py", "0.1", "0.2", {"helper.py"}),
        ("late.py", "1.0", "1", {"late.py"}),
        ("parts/sums.py", "sum(x)", "sum(x[1:])", {"parts/sums.py: total"}),
        ("unused.py", "1", "2", set()),
    ],
)
def test_what_a_file_does_counts_and_how_it_is_written_does_not(hashes, file, old, new, names):
    before = hashes()
    assert old in FILES[file]
    assert changed(before, hashes({file: FILES[file].replace(old, new)})) == names


def test_a_program_has_the_same_hashes_wherever_its_folder_lies(hashes, tmp_path, tmp_path_factory):
    before = hashes()
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "copy"
    tmp_path.rename(elsewhere)
    assert program_hashes(["python", "train.py"], folder=elsewhere) == before
    # From another folder, by its path: beside the script is where Python looks too.
    assert program_hashes(["python", "copy/train.py"], folder=elsewhere.parent) == before


def test_a_module_is_found_as_python_finds_it(hashes, tmp_path, monkeypatch):
    as_module = hashes({"parts/__main__.py": "import losses_of_path\n"}, command=("python", "-m", "parts", "train.py"))
    assert set(as_module) == {"parts/__init__.py", "parts/__main__.py"}
    there = tmp_path / "there"
    there.mkdir()
    (there / "losses_of_path.py").write_text("X = 1")
    monkeypatch.syspath_prepend(there)
    assert "losses_of_path.py" in hashes(command=("python", "-m", "parts"))


def test_what_python_warns_of_is_left_to_the_import(hashes):
    assert "helper.py" in hashes({"helper.py": "WARNED = 1 is 1, '\\d'\n"})  # A warning is an error in tests.


def test_a_file_that_is_no_python_or_gone_is_left_to_its_run(hashes):
    without = hashes({"helper.py": "print 'for Python 2'", "late.py": "return 1"})
    assert without.keys().isdisjoint({"helper.py", "late.py"})
    assert "model.py" in without
    assert hashes(command=("python", "gone.py")) == {}
    assert hashes(command=("python", "-m", "torch.distributed.run")) == {}
