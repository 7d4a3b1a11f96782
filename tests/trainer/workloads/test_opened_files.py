"""Which files count as read by the user's code: by any name, and only for reading."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from segue.trainer.workloads import opened_files

_PROGRAM = """
import sys
from pathlib import Path
import numpy, torch
from segue.trainer.workloads.opened_files import opened_files, watch_opened_files
folder = Path(sys.argv[1])
(folder / "before.txt").read_text()
watch_opened_files()
watch_opened_files()
(folder / "read.txt").read_text()
open(folder / "read.txt").close()
numpy.load(folder / "array.npy")
torch.load(folder / "tensors.pt")
(folder / "written.txt").write_text("new")
from segue.stores import LocalStore
LocalStore(folder).get("of_segue.txt")
import json.tool
print([Path(path).name for path in opened_files()])
"""

_MANY = """
import os, sys
from pathlib import Path
from segue.trainer.workloads.opened_files import opened_files, watch_opened_files
folder = Path(sys.argv[1])
watch_opened_files()
for name in (".env", "server.pem", "id_rsa", "api_key.txt", "hf_token.json"):
    (folder / name).read_text()
for attempt in range(3):
    for path in sorted(folder.glob("many/*/*.txt")):
        path.read_text()
os.close(os.open(os.fsencode(folder / "odd"), os.O_RDONLY))
with open(os.open(folder / "odd", os.O_RDONLY)) as file:
    assert file.read() == "text"
try:
    open(folder / "absent")
except FileNotFoundError:
    pass
found = [Path(path) for path in opened_files()]
print(len(found), max(sum(one.parent == other.parent for other in found) for one in found))
print([path.name for path in found if path.parent == folder])
"""

_LOGS = """
import os, sys
from pathlib import Path
from segue.trainer.workloads.opened_files import is_only_written, watch_opened_files
os.chdir(sys.argv[1])
watch_opened_files()
Path("log.txt").write_text("1")
open("log.txt", "a").close()
Path("state.txt").write_text("1")
first = is_only_written(os.path.abspath("state.txt"))
Path("state.txt").read_text()
Path("found.txt").read_text()
Path("found.txt").write_text("2")
open("both.txt", "a+").close()
from segue.stores import LocalStore
LocalStore(Path.cwd()).get("log.txt")
names = ("log.txt", "state.txt", "found.txt", "both.txt", "of_segue.txt")
print(first, [name for name in names if is_only_written(name)])
"""


def test_a_log_is_only_written_and_what_was_read_before_or_after_is_not(tmp_path):
    (tmp_path / "found.txt").write_text("1")
    program = tmp_path / "program.py"
    program.write_text(_LOGS)
    command = [sys.executable, str(program), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "True ['log.txt']"


@pytest.mark.matrix
def test_files_that_the_users_code_reads_are_known_however_it_opens_them(tmp_path):
    import numpy as np
    import torch

    for name in ("before.txt", "read.txt", "written.txt", "of_segue.txt"):
        (tmp_path / name).write_text("text")
    np.save(tmp_path / "array.npy", np.zeros(2))
    torch.save({"a": torch.zeros(2)}, tmp_path / "tensors.pt")
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    command = [sys.executable, str(program), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert done.stdout.strip() == "['read.txt', 'array.npy', 'tensors.pt']"


def test_secrets_are_left_out_and_many_files_stay_few_and_no_call_of_the_user_fails(tmp_path):
    names = (".env", "server.pem", "id_rsa", "api_key.txt", "hf_token.json", "odd")
    paths = [tmp_path / name for name in names]
    paths += [tmp_path / "many" / str(folder) / f"{number}.txt" for folder in range(12) for number in range(12)]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    program = tmp_path / "program.py"
    program.write_text(_MANY)
    command = [sys.executable, str(program), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert done.stdout.splitlines() == ["64 8", "[]"]


@pytest.mark.parametrize(
    ("mode", "flags", "is_read"),
    [("r", 0, True), ("rb", 0, True), ("w", 0, False), ("r+", 0, True), (None, 0, True), (None, 1, False)],
)
def test_what_is_opened_to_write_is_not_read(mode, flags, is_read):
    assert opened_files._is_read(mode, flags) is is_read
