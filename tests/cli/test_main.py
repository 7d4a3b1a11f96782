"""The command as a whole: version, module, completion, and the run spec of the folder."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.main import get_command

from segue.cli.main import app, whole_command
from tests.cli.test_errors import TINY, Place, refusal


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path / "place")


def test_the_version_is_that_of_the_installed_package(place):
    outcome = place.run("--version")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"segue {version('segue')}\n", "")


def test_the_module_is_the_command():
    command = [sys.executable, "-m", "segue", "--version"]
    assert subprocess.check_output(command, text=True, timeout=60) == f"segue {version('segue')}\n"


_WITHOUT_EXTRAS = """
import sys
from importlib.metadata import packages_distributions, requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

def needed(names):
    found, left = set(), [canonicalize_name(name) for name in names]
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            each = map(Requirement, requires(name) or ())
            left += [canonicalize_name(r.name) for r in each if not r.marker or r.marker.evaluate({"extra": ""})]
    return found

kept = needed(["segue"])
blocked = {
    module
    for module, owners in packages_distributions().items()
    if kept.isdisjoint(map(canonicalize_name, owners))
}
assert {"prefect", "pandas", "psutil", "boto3"} <= blocked and {"torch", "pydantic", "typer"}.isdisjoint(blocked)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in list(sys.modules):
    if name.partition(".")[0] in blocked:
        del sys.modules[name]
sys.meta_path.insert(0, Finder())
from segue.cli.main import whole_command
print(sorted(whole_command().commands))
"""


def test_every_command_is_imported_without_the_packages_of_the_extras(place):
    command = [sys.executable, "-c", _WITHOUT_EXTRAS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{sorted(whole_command().commands)}\n"


@pytest.mark.matrix
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete_the_commands(place, shell):
    place.set("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    outcome = place.run("--show-completion", shell)
    assert outcome.code == 0
    assert "_SEGUE_COMPLETE" in outcome.out


def test_a_run_beside_a_run_toml_says_that_it_is_not_used(place):
    place.write("run.toml", "steps = 0\n")
    outcome = place.run("run", TINY, "--steps", "0")
    assert outcome.code == 2
    first, second = outcome.err.splitlines()
    assert first == "run.toml of this folder is not used; --config run.toml uses its settings."
    assert second.startswith("segue: ")


@pytest.mark.parametrize("command", ["run", "drill"])
def test_without_a_recipe_the_run_toml_of_the_folder_is_used(place, command):
    place.write("run.toml", f'recipe = "{TINY}"\nsteps = 8\nsteeps = 9\n')
    outcome = place.run(command)
    assert outcome.code == 2
    assert outcome.err.splitlines()[0] == "settings: run.toml of this folder"
    assert "run.toml" in outcome.err.splitlines()[1]
    assert "steeps" in outcome.err


def test_without_a_run_toml_nothing_is_said_of_it(place):
    assert "run.toml" not in refusal(place.run("run", TINY, "--steps", "0"))


def test_the_list_of_commands_has_the_first_paragraph_of_each_and_imports_none_of_them(place):
    whole = whole_command()
    context = whole.context_class(whole, info_name="segue")
    listed = get_command(app)
    for name in listed.list_commands(context):
        line = listed.get_command(context, name).help
        assert line == " ".join(whole.commands[name].help.split("\n\n")[0].split()), name
    look = (
        "import sys; from segue.cli import main as cli\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n"
        "    print(end.code, 'segue.records' in sys.modules, 'segue.cli.status' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", look, "--help"], capture_output=True, text=True, check=True)
    assert "recover" in done.stdout
    assert done.stderr == "0 False False\n"


def test_a_mistyped_command_is_corrected(place):
    assert "Did you mean 'status'?" in place.run("statsu").err
