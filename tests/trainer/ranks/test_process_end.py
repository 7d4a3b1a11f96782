"""The end of a rank's process: what Python would do for the user is done, and then it ends in any case."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zipfile

import pytest

BEGIN = """
import atexit, ctypes, gzip, io, sys, threading, time, zipfile
from segue.trainer.ranks import process_end
folder = sys.argv[1]
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
    "a file of a class of the user's": (
        "class Upload(io.BufferedIOBase):\n"
        "    def close(self):\n"
        "        open(folder + '/file', 'w').write('rows')\n"
        "kept = Upload()",
        "rows",
    ),
    "a thread that waits for a pipe": (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '600'], stdout=subprocess.PIPE, text=True)\n"
        "threading.Thread(target=child.stdout.readline, daemon=True).start(); time.sleep(0.2)\n"
        "atexit.register(child.kill); process_end._END_SECONDS = 600\n"
        "kept = open(folder + '/file', 'w'); kept.write('rows')",
        "rows",
    ),
    "a file that compresses into one of the user's": (
        "class Upload(io.BytesIO):\n"
        "    def close(self):\n"
        "        rows = gzip.decompress(self.getvalue()) if self.getvalue() else b''\n"
        "        open(folder + '/file', 'wb').write(rows)\n"
        "kept = gzip.GzipFile(fileobj=Upload(), mode='wb'); kept.write(b'rows')",
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


def test_compressed_files_and_archives_are_complete(tmp_path):
    script = (
        "rows = gzip.open(folder + '/rows.gz', 'wt'); rows.write('rows')\n"
        "archive = zipfile.ZipFile(folder + '/rows.zip', 'w'); archive.writestr('rows', 'rows')"
    )
    subprocess.run([sys.executable, "-c", f"{BEGIN}{script}{END}", str(tmp_path)], check=False, timeout=120)
    assert gzip.decompress((tmp_path / "rows.gz").read_bytes()) == b"rows"
    with zipfile.ZipFile(tmp_path / "rows.zip") as archive:
        assert archive.read("rows") == b"rows"


def test_a_destructor_that_keeps_the_lock_of_python_ends_with_the_process(tmp_path):
    script = (
        "process_end._END_SECONDS, process_end._LOCKED_SECONDS = 0.2, 0.8\n"
        "atexit.register(lambda: ctypes.PyDLL(None).sleep(600))"
    )
    command = [sys.executable, "-c", f"{BEGIN}{script}{END}", str(tmp_path)]
    ended = subprocess.run(command, check=False, timeout=120, capture_output=True, text=True)
    assert ended.returncode != 0
    assert "Timeout" in ended.stderr
