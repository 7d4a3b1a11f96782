"""The end of a rank's process: what Python would do for the user is done, and then it ends in any case."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import atexit, ctypes, sys, threading, time
from segue.trainer.ranks import process_end
folder = sys.argv[1]
process_end._END_SECONDS = 60.0
"""
END = "\nprocess_end.end_process(3)\n"
CASES = {
    "text in a buffer": ("kept = open(folder + '/file', 'w'); kept.write('rows')", "rows"),
    "bytes in a buffer": ("kept = open(folder + '/file', 'wb'); kept.write(b'rows')", "rows"),
    "buffers of C": (
        "c = ctypes.CDLL(None); c.fopen.restype = ctypes.c_void_p\n"
        "c.fputs(b'rows', ctypes.c_void_p(c.fopen((folder + '/file').encode(), b'w')))",
        "rows",
    ),
    "exit function": ("atexit.register(lambda: open(folder + '/file', 'w').write('rows'))", "rows"),
    "thread": (
        "def late():\n"
        "    threading.main_thread().join()\n"
        "    open(folder + '/file', 'w').write('rows')\n"
        "threading.Thread(target=late).start()",
        "rows",
    ),
    "exit functions that raise": (
        "kept = open(folder + '/file', 'w'); kept.write('rows')\n"
        "threading._register_atexit(lambda: 1 / 0); atexit.register(lambda: 1 / 0)",
        "rows",
    ),
    "a thread that never ends": (
        "process_end._END_SECONDS = 0.5; open(folder + '/file', 'w').close()\n"
        "threading.Thread(target=lambda: time.sleep(600)).start()",
        "",
    ),
    "standard streams that are gone": (
        "kept = open(folder + '/file', 'w'); kept.write('rows'); sys.stdout = None; sys.stderr = object()",
        "rows",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_process_ends_as_python_ends_it_and_in_any_case(tmp_path, case):
    script, left = CASES[case]
    command = [sys.executable, "-c", f"{BEGIN}{script}{END}", str(tmp_path)]
    assert subprocess.run(command, check=False, timeout=120, capture_output=True).returncode == 3
    assert (tmp_path / "file").read_text() == left
