"""Reads attributes of the user's objects, which may raise any exception during the read.

`hasattr` and `getattr` handle only AttributeError, so a `__getattr__` that raises KeyError would end a run.
"""

from __future__ import annotations

import inspect
import os
import site
import sysconfig
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

_OF_SEGUE = f"{Path(__file__).parents[1]}{os.sep}"
_FOR_TESTS = f"{_OF_SEGUE}testing{os.sep}"
_METRIC_WORDS = frozenset(
    {"accuracy", "acc", "current", "error", "err", "loss", "metric", "metrics", "perf", "performance", "score"}
    | {"scores", "val", "validation", "value", "values"}
)
"""Words in the names of arguments that take a metric, such as `val_loss`, `metrics` or `current_score`."""


def attribute(value: Any, name: str, default: Any = None) -> Any:
    """Return an attribute. If the attribute is missing, or if reading the attribute raises an exception, return the
    default."""
    try:
        return getattr(value, name, default)
    except Exception:  # A property or a `__getattr__` of the user raised; the attribute counts as missing.
        return default


def text_of(value: Any) -> str:
    """Return the text of an object. If `str` raises an exception, return a text with the object's class.

    Even an exception of the user may raise an exception in `str`.
    """
    try:
        return str(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"


def in_words(value: object) -> str:
    """Describe a value for an error: None, a class, or an object of a class."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def settings_shown(module: Any) -> str:
    """Return the settings of a module from its `extra_repr`. If `extra_repr` raises, return an empty text."""
    try:
        return str(module.extra_repr())
    except Exception:
        return ""


def has(value: Any, *names: str) -> bool:
    """Whether an object has all these methods and is not a class."""
    return not isinstance(value, type) and all(callable(attribute(value, name)) for name in names)


def default_arguments(function: types.FunctionType) -> dict[str, Any]:
    """Return the default arguments of a function by name, in their order."""
    code, values = function.__code__, function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    return dict(zip(positional[len(positional) - len(values) :], values, strict=True)) | (function.__kwdefaults__ or {})


def signature_of(function: Any) -> inspect.Signature | None:
    """Return the signature of a callable. If the signature cannot be read, return None."""
    try:
        found = inspect.signature(function)
    except Exception:  # The callable is built in, or it raises when inspect reads its attributes.
        try:
            found = inspect.signature(type(function).__call__)
        except (TypeError, ValueError):
            return None
    parameters = list(found.parameters.values())
    # This is a class, or a method that was wrapped after it was bound, as torch does when it builds a scheduler.
    if parameters and parameters[0].name == "self":
        return found.replace(parameters=parameters[1:])
    return found


def needed_arguments(function: Any) -> tuple[str, ...]:
    """Return the names of a function's required arguments. If the signature is unknown, the result is empty."""
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
    """Whether the function accepts exactly these arguments. If its signature is unknown, return True."""
    signature = signature_of(function)
    if signature is None:
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def has_parameter(function: Any, name: str) -> bool:
    """Whether a function has an argument with this name."""
    signature = signature_of(function)
    return signature is not None and name in signature.parameters


def takes_metric(scheduler: Any) -> bool:
    """Whether the scheduler's `step` needs one argument whose name shows that the argument is a metric."""
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
    """Whether a source file belongs to the user: it is not installed, and is not part of Python or segue."""
    if file.startswith("<frozen "):
        return False  # This is Python's own code, such as the code that runs a script.
    path = str(Path(file))
    if path.startswith(_OF_SEGUE) and not path.startswith(_FOR_TESTS):
        return False
    return not path.startswith(_installed_prefixes())


@cache
def _installed_prefixes() -> tuple[str, ...]:
    return tuple(f"{Path(folder)}{os.sep}" for folder in installed_folders())


@cache
def installed_folders() -> tuple[str, ...]:
    """Return the folders of Python's own modules and of installed packages."""
    paths = sysconfig.get_paths()
    return (paths["purelib"], paths["platlib"], paths["stdlib"], *site.getsitepackages(), site.getusersitepackages())
