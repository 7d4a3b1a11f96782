"""Classifies the effect of a call on its arguments by the name of the called function.

A call shows its arguments, computes a value from its arguments, or stores its arguments.
"""

from __future__ import annotations

import ast

_SHOWING = frozenset({"print", "pprint", "display", "input", "warn"})
_SHOWING_METHODS = frozenset(
    {"info", "debug", "warning", "error", "critical", "exception", "log", "print", "echo", "secho", "add_scalar"}
    | {"add_scalars", "add_histogram", "add_text", "add_image", "add_images", "add_figure", "add_hparams", "write"}
    | {"writelines", "writerow", "writerows", "set_postfix", "set_postfix_str", "set_description", "flush", "plot"}
    | {
        "write_text",
        "set_description_str",
        "log_metric",
        "log_metrics",
        "log_dict",
        "log_param",
        "log_params",
        "refresh",
    }
)
_SHOWING_OBJECTS = frozenset(
    {"logging", "logger", "log", "LOG", "LOGGER", "_log", "_logger", "console", "wandb", "tb", "writer", "summary"}
    | {"pbar", "bar", "progress", "progress_bar", "tqdm", "mlflow", "neptune", "comet", "experiment", "plt", "ax"}
    | {"fig", "axes", "stdout", "stderr", "typer", "click", "rich", "warnings", "tracker"}
)
"""Common names of objects that show numbers to people."""

_BUILT_IN = frozenset(
    {"abs", "all", "any", "bool", "bytes", "complex", "dict", "divmod", "enumerate", "filter", "float", "format"}
    | {"frozenset", "getattr", "hasattr", "hash", "id", "int", "isinstance", "iter", "len", "list", "map", "max"}
    | {"min", "next", "pow", "range", "repr", "reversed", "round", "set", "slice", "sorted", "str", "sum", "super"}
    | {"tuple", "type", "zip", "vars", "Counter", "OrderedDict", "defaultdict", "deque", "SimpleNamespace", "ceil"}
    | {"floor", "sqrt", "cos", "sin", "exp", "isnan", "isinf", "isfinite", "mean", "median", "deepcopy", "copy"}
    | {"timedelta", "namedtuple", "partial", "array", "Fraction", "Decimal"}
)
_MODULES = frozenset(
    {"math", "np", "numpy", "torch", "F", "functional", "nn", "itertools", "statistics", "operator", "copy", "cmath"}
    | {"collections", "os", "re", "json", "string", "functools", "random", "pd", "pandas", "datetime", "jnp", "types"}
)
_OF_LIBRARIES = frozenset({"nn", "optim", "lr_scheduler", "swa_utils", "utils", "cuda", "amp"})
_KEEPING = frozenset(
    {
        "save",
        "savez",
        "savetxt",
        "dump",
        "seed",
        "manual_seed",
        "manual_seed_all",
        "set_rng_state",
        "setstate",
        "remove",
    }
    | {"set_default_dtype", "set_grad_enabled", "savez_compressed", "to_csv", "to_json", "to_parquet", "system"}
)
"""Functions with side effects, in modules whose other functions only compute a value."""

_MUTATING = frozenset(
    {"append", "appendleft", "extend", "extendleft", "add", "update", "insert", "pop", "popleft", "popitem", "remove"}
    | {"clear", "setdefault", "discard", "push", "put", "sort", "reverse", "rotate", "fill", "subtract", "move_to_end"}
    | {"difference_update", "intersection_update", "itemset", "manual_seed", "seed", "setstate", "set_state"}
)
_VALUES = frozenset(
    {"item", "detach", "cpu", "numpy", "tolist", "mean", "sum", "max", "min", "float", "double", "half", "long", "int"}
    | {"clone", "to", "cuda", "format", "join", "get", "items", "keys", "values", "copy", "split", "strip", "view"}
    | {"reshape", "norm", "abs", "sqrt", "pow", "exp", "std", "var", "argmax", "argmin", "size", "dim", "numel", "eq"}
    | {"gt", "lt", "ge", "le", "ne", "all", "any", "count", "index", "most_common", "startswith", "endswith", "lower"}
    | {"upper", "replace", "unsqueeze", "squeeze", "transpose", "permute", "t", "contiguous", "repeat", "expand"}
    | {"flatten", "topk", "sort", "softmax", "sigmoid", "tanh", "relu", "square", "median", "isnan", "isfinite", "type"}
    | {"total_seconds", "isoformat", "strftime", "ravel", "astype", "round", "cumsum", "prod", "elements", "total"}
    | {
        "parameters",
        "named_parameters",
        "buffers",
        "modules",
        "children",
        "as_tensor",
        "bool",
        "mul",
        "div",
        "add",
        "sub",
    }
)
_OF_PROCESS = frozenset(
    {"time", "perf_counter", "monotonic", "process_time", "time_ns", "perf_counter_ns", "monotonic_ns", "now", "utcnow"}
    | {"today", "getpid", "gethostname", "uuid1", "uuid4", "mkdtemp", "mkstemp", "gettempdir", "TemporaryDirectory"}
    | {"NamedTemporaryFile", "elapsed_time", "thread_time", "getppid", "urandom", "token_hex", "cpu_percent", "node"}
    | {"memory_allocated", "max_memory_allocated", "virtual_memory", "getloadavg", "default_timer", "timer"}
)
"""Functions whose results differ in each process, for example times, process ids and temporary file names."""


def words_of(function: ast.expr) -> list[str]:
    """Return the parts of a dotted name in reverse order. For `self.writer.add_scalar`, the method comes first."""
    words: list[str] = []
    if isinstance(function, ast.Subscript):
        function = function.value  # A generic class, e.g. `Counter[str]()`.
    while isinstance(function, ast.Attribute):
        words.append(function.attr)
        function = function.value
    if isinstance(function, ast.Name):
        words.append(function.id)
    elif isinstance(function, ast.Call):
        words += ["()", *words_of(function.func)]
    elif words:
        words.append("[]")
    return words


def shows(words: list[str], *, has_arguments: bool) -> bool:
    """Whether a call only shows its arguments to people."""
    if not words:
        return False
    if len(words) == 1:
        return words[0] in _SHOWING or words[0] in _SHOWING_OBJECTS
    if words[0] == "log" and (words[-1] in _MODULES or not has_arguments):
        return False  # `log` is the logarithm here.
    return words[0] in _SHOWING_METHODS or not _SHOWING_OBJECTS.isdisjoint(words[1:])


def computes(words: list[str]) -> bool:
    """Whether a call only computes its result from its arguments."""
    if not words:
        return False
    if len(words) == 1:
        return words[0] in _BUILT_IN
    return words[-1] in _MODULES and words[0] not in _KEEPING and "()" not in words


def makes_plain(words: list[str]) -> bool:
    """Whether the result of a call with this name is plain data, and not an object of a library."""
    return computes(words) and _OF_LIBRARIES.isdisjoint(words[1:])


def mutates(method: str) -> bool:
    """Whether a method adds its arguments to its object, which is a collection or a tensor."""
    return method in _MUTATING or (method.endswith("_") and not method.startswith("_"))


def overwrites(method: str) -> bool:
    """Whether a method of a tensor or a generator overwrites the whole content of its object."""
    return method in ("copy_", "zero_", "fill_", "normal_", "uniform_", "random_", "manual_seed", "seed", "setstate")


def gives_value(method: str) -> bool:
    """Whether a method only computes a value from its object and its arguments."""
    return method in _VALUES


def is_of_process(words: list[str]) -> bool:
    return bool(words) and words[0] in _OF_PROCESS
