"""The packages that setuptools finds: every folder of the pack that has modules, under its import name."""

from __future__ import annotations

import tomllib
from pathlib import Path

from setuptools import find_packages

from tests.support.rooms import HOMES, modules

REPO = Path(__file__).parents[2]
SETUP = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_package_of_the_tree_is_found_and_no_other():
    found = find_packages(str(REPO), **SETUP["packages"]["find"])
    templates = "segue.deployments.templates"
    homes = {name.rpartition(".")[0] for name in modules() if "." in name and not name.startswith(templates)}
    assert sorted({*found, "segue"}) == sorted(homes)


def test_every_folder_with_modules_is_a_package():
    templates = REPO / "deployments" / "templates"
    homes = [REPO / folder for folder in HOMES]
    folders = {path.parent for home in homes for path in home.rglob("*.py")} - {templates}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_the_folders_at_the_top_are_linked_into_the_package():
    for folder, package in HOMES.items():
        if folder != "segue":
            link = REPO / package.replace(".", "/")
            assert link.is_symlink()
            assert link.resolve() == REPO / folder
            assert not link.readlink().is_absolute()
