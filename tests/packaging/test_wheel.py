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

from tests.support.rooms import modules

REPO = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "segue", "flows", "tasks", "deployments")

pytestmark = [pytest.mark.matrix, pytest.mark.prefect]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of the sources: setuptools leaves a build folder, and packs what an earlier build left there."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (REPO / name).is_dir():
            shutil.copytree(REPO / name, source / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
        else:
            shutil.copy(REPO / name, source)
    return source


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    return built("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    return environment_with(wheel, tmp_path_factory.mktemp("environment"))


def built(kind: str, source: Path, out: Path) -> Path:
    """A wheel, a source distribution (sdist) or an editable wheel of these sources."""
    build = f"import setuptools.build_meta as b, sys; print(b.build_{kind}(sys.argv[1]))"
    out.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-c", build, str(out)], cwd=source, check=True, capture_output=True)
    (found,) = out.iterdir()
    return found


def environment_with(wheel: Path, folder: Path) -> Path:
    """The bin folder of a virtual environment with the wheel, which sees this one's packages but not its checkout."""
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
    monitoring = {path.name for path in (REPO / "deployments" / "monitoring").iterdir()}
    assert {name.rpartition("/")[2] for name in names if "/monitoring/" in name} == monitoring
    assert "segue/py.typed" in names


def test_a_source_distribution_gives_the_same_wheel(source, wheel, tmp_path):
    shutil.unpack_archive(built("sdist", source, tmp_path / "packed"), tmp_path / "unpacked", filter="data")
    (folder,) = (tmp_path / "unpacked").iterdir()
    again = built("wheel", folder, tmp_path / "again")
    assert sorted(contents(again)) == sorted(contents(wheel))


def contents(wheel: Path) -> list[tuple[str, int]]:
    """Names and sums of what is in a wheel; what is written about the wheel itself is left out."""
    files = zipfile.ZipFile(wheel).infolist()
    return [(file.filename, file.CRC) for file in files if not file.filename.endswith(("/RECORD", "/WHEEL"))]


def test_an_editable_installation_imports_all_of_it(source, tmp_path):
    python = environment_with(built("editable", source, tmp_path / "wheel"), tmp_path / "environment") / "python"
    names = [name for name in modules() if not name.endswith(".__main__") and ".templates" not in name]
    look = f"import importlib.util as u; print([n for n in {names} if u.find_spec(n) is None], u.find_spec('flows'))"
    assert run(tmp_path, python, "-c", look).strip() == "[] None"


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
