"""The public surface: exactly the names that the design promises, each of them loadable, none of them heavy."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import segue

PUBLIC = {
    "EarlyStop",
    "Recipe",
    "Run",
    "RunSpec",
    "SegueError",
    "StoreSpec",
    "Variables",
    "check_curve",
    "curve",
    "data_frame",
    "drill",
    "export_checkpoint",
    "fork_run",
    "import_weights",
    "load_checkpoint",
    "load_model",
    "open_run",
    "open_store",
    "plan",
    "session",
}


def test_the_public_names_are_exactly_these():
    assert set(segue.__all__) == PUBLIC | {"__version__"}


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_is_a_documented_class_or_function(name):
    found = getattr(segue, name)
    assert inspect.isclass(found) or inspect.isfunction(found)
    assert inspect.getdoc(found)


@pytest.mark.matrix
@pytest.mark.parametrize("module", ["segue.curves.frame", "segue.resume_drill", "segue.planning", "segue.run"])
def test_a_public_function_stays_one_whatever_was_imported_before(module):
    look = f"import {module}, segue, inspect; print([n for n in segue.__all__ if inspect.ismodule(getattr(segue, n))])"
    assert subprocess.check_output([sys.executable, "-c", look], text=True).strip() == "[]"


def test_what_is_not_public_is_refused_by_name():
    with pytest.raises(AttributeError, match="no attribute 'RunLogs'"):
        segue.RunLogs  # noqa: B018
