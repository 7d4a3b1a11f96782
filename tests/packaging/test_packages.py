"""The packages that pyproject.toml lists: setuptools cannot find those whose import name is not their folder's."""

from __future__ import annotations

import tomllib
from pathlib import Path

REPO = Path(__file__).parents[2]
SETUP = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["setuptools"]


def folders_of(package: str, folder: str) -> set[str]:
    """Import names of every folder below `folder` that has modules."""
    found = (path.parent for path in (REPO / folder).rglob("__init__.py"))
    return {".".join((package, *path.relative_to(REPO / folder).parts)) for path in found}


def test_every_package_of_the_tree_is_listed_and_no_other():
    found = set().union(*(folders_of(package, folder) for package, folder in SETUP["package-dir"].items()))
    assert sorted(SETUP["packages"]) == sorted(found)


def test_every_folder_with_modules_is_a_package():
    templates = REPO / "deployments" / "templates"
    homes = [REPO / folder for folder in SETUP["package-dir"].values()]
    folders = {path.parent for home in homes for path in home.rglob("*.py")} - {templates}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []
