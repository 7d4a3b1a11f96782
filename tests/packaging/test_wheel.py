"""The wheel in an environment of its own: the pack works without a clone, and puts one name into site-packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "segue", "flows", "tasks", "deployments")

pytestmark = [pytest.mark.matrix, pytest.mark.prefect]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy: setuptools leaves a build folder, and packs what an earlier build left there."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (REPO / name).is_dir():
            shutil.copytree(REPO / name, source / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
        else:
            shutil.copy(REPO / name, source)
    build = ("wheel", "--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(out), str(source))
    subprocess.run([sys.executable, "-m", "pip", *build], check=True, capture_output=True)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """The bin folder of a virtual environment with the wheel, which sees this one's packages but not its checkout."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    look = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(subprocess.check_output([python, "-c", look], text=True).strip())
    # A plain line of a .pth file: the .pth files in that folder, such as an editable segue's, are not read.
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin"


def run(folder: Path, *command: str | Path) -> str:
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PREFECT_API_URL")}
    ended = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_wheel_has_one_package_and_its_templates(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"segue"}
    templates = {path.name for path in (REPO / "deployments" / "templates").iterdir() if path.name != "__pycache__"}
    assert {name.rpartition("/")[2] for name in names if "/templates/" in name} == templates
    assert "segue/py.typed" in names


def test_an_empty_folder_becomes_a_project_that_is_drilled_and_trained(environment, tmp_path):
    look = "import segue, segue.flows, segue.deployments; print(segue.__file__, segue.flows.__file__)"
    found = run(tmp_path, environment / "python", "-c", look).split()
    assert all(Path(path).is_relative_to(environment.parent) for path in found)
    segue = environment / "segue"
    assert "wrote train.py" in run(tmp_path, segue, "init")
    assert "identical to" in run(tmp_path, segue, "drill", "train:build")
    ended = run(tmp_path, segue, "run", "train:build", "--steps", "300", "--run-id", "first")
    assert "first: step 300 of 300." in ended
    assert "finished" in run(tmp_path, segue, "runs")
