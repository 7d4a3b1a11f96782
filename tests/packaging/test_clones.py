"""The clone of a stranger: its folder may have any name, its user any rights, and its home may be read-only."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
SOURCES = ("segue", "flows", "tasks", "deployments", "benchmarks", "examples", "website", "tests")
LONG = "/".join(["a-folder-whose-name-is-far-longer-than-most-others-are"] * 3)
"""Longer than the 108 bytes of a Unix socket's path and the 127 bytes of an old kernel's first line of a script."""
OTHER_USER = "nobody"

pytestmark = pytest.mark.matrix

# Called by make with the arguments of mypy: passes if the package lies where its import names say.
MYPY = """#!/bin/sh
test -f segue/__init__.py && test -f segue/flows/train.py && test -f segue/tasks/__init__.py &&
test -f segue/deployments/__init__.py && test -f benchmarks/__main__.py && test -f website/reference.py &&
test "$1" = -p && test "$2" = segue
"""


@dataclass(frozen=True)
class Clone:
    """A clone with an environment in `.venv` as `make setup` leaves it, apart from packages, which it borrows."""

    folder: Path
    home: Path
    user: str | None
    """None: the one who runs the tests."""

    def run(self, *command: str | Path, cwd: Path | None = None) -> str:
        passed = ("PATH", "LANG", "LC_ALL")
        own = {name: os.environ[name] for name in passed if name in os.environ} | {"HOME": str(self.home)}
        who = {}
        if self.user is not None:
            account = pwd.getpwnam(self.user)
            who = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        where = cwd or self.folder
        ended = subprocess.run(
            command, cwd=where, env=own, capture_output=True, text=True, check=False, timeout=500, **who
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    @property
    def bin(self) -> Path:
        return self.folder / ".venv" / "bin"


def interpreter_for(user: str | None) -> str:
    """A Python of this version that the user may run."""
    if user is None:
        return sys.executable
    if os.getuid() != 0:
        pytest.skip("only root can run something as another user")
    account = pwd.getpwnam(user)
    look = "import os, sys; print(os.access(sys.argv[1], os.R_OK), sys.version_info[:2] == eval(sys.argv[2]))"
    site = sysconfig.get_paths()["purelib"]
    for python in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        try:
            asked = [python, "-c", look, site, str(tuple(sys.version_info[:2]))]
            who = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            found = subprocess.run(asked, capture_output=True, text=True, check=False, cwd="/", **who)
        except OSError:
            continue
        if found.stdout.split() == ["True", "True"]:
            return python
    pytest.skip(f"{user} may run no Python of this version, or not read {site}")


@pytest.fixture(
    scope="module",
    params=["segue", "my segue (2)", "ünïcode", LONG],
    ids=["called segue", "with spaces", "with accents", "long"],
)
def clone(request) -> Iterator[Clone]:
    """Two of them are another user's."""
    if not (REPO / ".git").exists():
        pytest.skip("this is no git repository")
    user = OTHER_USER if request.param in ("segue", "my segue (2)") else None
    python = interpreter_for(user)
    with tempfile.TemporaryDirectory(prefix="clones-") as name:  # Pytest's own folders are closed to other users.
        Path(name).chmod(0o755)
        folder, home = Path(name, request.param), Path(name, "home")
        home.mkdir()
        home.chmod(0o555)
        subprocess.run(["git", "clone", "--quiet", REPO, folder], check=True)
        made = Clone(folder, home, user)
        furnish(made, python)
        if user is not None:
            shutil.chown(name, user)
            subprocess.run(["chown", "--recursive", f"{user}:", folder], check=True)
        yield made


def furnish(clone: Clone, python: str) -> None:
    venv = clone.folder / ".venv"
    subprocess.run([python, "-m", "venv", "--without-pip", venv], check=True)
    look = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    own = Path(subprocess.check_output([venv / "bin" / "python", "-c", look], text=True).strip())
    # By a link, so that the paths of packages lead through the clone's folder, as if they were installed there.
    (own / "others").symlink_to(sysconfig.get_paths()["purelib"])
    # A plain line of a .pth file: the .pth files in that folder, such as an editable segue's, are not read.
    (own / "others.pth").write_text("others\n")
    pip = (sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "install")
    how = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    subprocess.run([*pip, *how, "--editable", clone.folder], check=True, capture_output=True)
    (venv / "bin" / "ruff").symlink_to(Path(sys.executable).parent / "ruff")
    (venv / "bin" / "mypy").write_text(MYPY)
    (venv / "bin" / "mypy").chmod(0o755)
    (venv / ".installed-for-demos").touch()
    (venv / ".installed").touch()


def test_it_is_the_clone_that_is_imported(clone):
    look = "import segue, segue.flows, segue.deployments; print(segue.__file__, segue.flows.__file__, sep='\\n')"
    found = clone.run(clone.bin / "python", "-c", look).splitlines()
    assert [Path(path).is_relative_to(clone.folder) for path in found] == [True, True]


def test_make_finds_its_tools_and_the_sources(clone):
    clone.run("make", "lint")
    clone.run("make", "types")


def test_make_installs_nothing_into_an_environment_that_it_is_given(clone):
    (clone.folder / "Makefile").touch()
    (clone.folder / "pyproject.toml").touch()  # As in each new clone, it is newer than the environment.
    planned = clone.run("make", "--dry-run", f"VENV={clone.bin.parent}", "units")
    assert "pip install" not in planned
    assert f'"{clone.bin.parent}/bin"/python -m pytest' in planned
    assert "pip install" in clone.run("make", "--dry-run", "units")


def test_make_installs_once_and_for_a_demo_only_what_it_needs(clone):
    stamps = (clone.bin.parent / ".installed-for-demos", clone.bin.parent / ".installed")
    for stamp in stamps:
        stamp.touch()
    for target in ("demo", "retrain-demo", "units"):
        assert "pip install" not in clone.run("make", "--dry-run", target)
    (clone.folder / "constraints.txt").touch()
    for target, extras in (("demo", "'.[prefect,data]'"), ("units", "'.[s3,gcs,azure,prefect,data,docs,dev]'")):
        planned = clone.run("make", "--dry-run", target)
        assert planned.count("pip install") == 1
        assert f"--editable {extras}" in planned
        assert "-m compileall" in planned
    for stamp in stamps:
        stamp.touch()


def test_what_a_step_calls_is_counted_in_the_package_alone(clone):
    which = "tests/benchmarks/test_step_work.py::test_a_plain_step_takes_no_fingerprint_and_calls_little"
    clone.run(clone.bin / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", which)


def test_a_project_in_it_is_begun_and_drilled(clone):
    project = clone.folder / "my project (ü)"
    clone.run("mkdir", project)
    assert "Usage: segue" in clone.run(clone.bin / "segue", "--help", cwd=project)
    assert "wrote train.py" in clone.run(clone.bin / "segue", "init", cwd=project)
    drill = ("drill", "train:build", "--steps", "30", "--kills", "1")
    assert "identical to" in clone.run(clone.bin / "segue", *drill, cwd=project)


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_every_source_compiles_without_a_warning_with_a_later_python(version, tmp_path):
    python = shutil.which(f"python{version}")
    facts = {"env": os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYENV_VERSION": version}, "cwd": REPO}
    if python is None or subprocess.run([python, "-V"], **facts, capture_output=True, check=False).returncode:
        pytest.skip(f"python{version} is not installed")
    command = [python, "-W", "error", "-m", "compileall", "-q", *SOURCES]
    done = subprocess.run(command, **facts, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
