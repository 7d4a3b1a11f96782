"""Reads objects of the user's, which may raise any exception when they are read.

`hasattr` and `getattr` let everything but AttributeError through, so a `__getattr__` with a KeyError would end a run.
"""

from __future__ import annotations

import inspect
import site
import sysconfig
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

_METRIC_WORDS = frozenset(
    {"accuracy", "acc", "current", "error", "err", "loss", "metric", "metrics", "perf", "performance", "score"}
    | {"scores", "val", "validation", "value", "values"}
)
"""Words, one of which is in the name of an argument that takes a metric: `val_loss`, `metrics`, `current_score`."""


def attribute(value: Any, name: str, default: Any = None) -> Any:
    """An attribute, or the default if there is none or the object raises."""
    try:
        return getattr(value, name, default)
    except Exception:  # From a property or a `__getattr__` of the user's; it means the same as an absent attribute.
        return default


def text_of(value: Any) -> str:
    """An object's description; its class if it raises. Even an exception of the user's may raise when it is shown."""
    try:
        return str(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"


def in_words(value: object) -> str:
    """A description of a value for an error: None, a class, or an object of a class."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def settings_shown(module: Any) -> str:
    """The settings that a module prints; empty if its `extra_repr` raises."""
    try:
        return str(module.extra_repr())
    except Exception:
        return ""


def has(value: Any, *names: str) -> bool:
    """Whether an object that is not a class has all these methods."""
    return not isinstance(value, type) and all(callable(attribute(value, name)) for name in names)


def default_arguments(function: types.FunctionType) -> dict[str, Any]:
    """The default arguments of a function by name, in their order."""
    code, values = function.__code__, function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    return dict(zip(positional[len(positional) - len(values) :], values, strict=True)) | (function.__kwdefaults__ or {})


def signature_of(function: Any) -> inspect.Signature | None:
    """The arguments of a callable; None if they are not known."""
    try:
        found = inspect.signature(function)
    except Exception:  # It is built in, or an object that raises when inspect reads its attributes.
        try:
            found = inspect.signature(type(function).__call__)
        except (TypeError, ValueError):
            return None
    parameters = list(found.parameters.values())
    # For a class, or for a method that was wrapped after it was bound, as torch does when a scheduler is built.
    if parameters and parameters[0].name == "self":
        return found.replace(parameters=parameters[1:])
    return found


def needed_arguments(function: Any) -> tuple[str, ...]:
    """Names of the arguments without which the function cannot be called; empty if they are not known."""
    signature = signature_of(function)
    if signature is None:
        return ()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return tuple(
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is inspect.Parameter.empty and parameter.kind not in variadic
    )


def can_be_called(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether the function can be called with exactly these arguments; True if that is not known."""
    signature = signature_of(function)
    if signature is None:
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def has_parameter(function: Any, name: str) -> bool:
    """Whether a function has an argument of this name."""
    signature = signature_of(function)
    return signature is not None and name in signature.parameters


def takes_metric(scheduler: Any) -> bool:
    """Whether the scheduler's `step` needs one argument, and its name says that this is a metric."""
    needed = needed_arguments(attribute(scheduler, "step"))
    return len(needed) == 1 and not _METRIC_WORDS.isdisjoint(needed[0].lower().split("_"))


def step_by_metric(scheduler: Any, metric: float) -> None:
    """Call the `step` of a scheduler that takes a metric."""
    (name,) = needed_arguments(scheduler.step)
    signature = signature_of(scheduler.step)
    if signature is not None and signature.parameters[name].kind is inspect.Parameter.KEYWORD_ONLY:
        scheduler.step(**{name: metric})
    else:
        scheduler.step(metric)


def is_users_file(file: str) -> bool:
    """Whether a source file is the user's: not installed, and not part of Python or segue."""
    if file.startswith("<frozen "):
        return False  # Python's own code, such as the code that runs a script.
    here = Path(__file__).parents[1]
    path = Path(file)
    if path.is_relative_to(here) and not path.is_relative_to(here / "testing"):
        return False
    return not any(path.is_relative_to(folder) for folder in installed_folders())


def installed_folders() -> tuple[str, ...]:
    """Folders of Python's own modules and of installed packages."""
    paths = sysconfig.get_paths()
    return (paths["purelib"], paths["platlib"], paths["stdlib"], *site.getsitepackages(), site.getusersitepackages())
