"""The user's module: its import, its workflows, and the file and line of a mistake."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, cast

from dbos import DBOS

from mcp_workflows.adapter import JSON
from mcp_workflows.adapter.forms import read_form
from mcp_workflows.errors import ConfigError
from mcp_workflows_dbos.workflow import ask

_PLAIN: Final = (
    ast.Name,
    ast.Attribute,
    ast.Constant,
    ast.Dict,
    ast.List,
    ast.Load,
    ast.Subscript,
    ast.UnaryOp,
    ast.USub,
)
_STEP: Final = "<temp>."  # the prefix of workflows that DBOS makes of steps which are called outside of one
_ORIGINAL: Final = "__orig_func"  # DBOS's attribute for the function under its decorator
_WRAPPED: Final = "mcp_workflows_fails_on_exit"  # our attribute of functions that `fail_on_exit` has wrapped
_TOOL: Final = "mcp_workflows_tool"  # our attribute with the settings of `tool`
_DERIVED: Final = frozenset({"engine", "workflow", "input"})  # settings of a tool that the function itself determines


_EXITS: Final[Mapping[type[BaseException], str]] = {
    SystemExit: "called exit",
    KeyboardInterrupt: "raised KeyboardInterrupt",
    asyncio.CancelledError: "raised CancelledError, or awaited what was cancelled",
}
"""The errors that DBOS does not record; `SystemExit` and `KeyboardInterrupt` would also end the event loop."""


class WorkflowExitError(Exception):
    """The failure of a workflow that raised one of `_EXITS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowFunction:
    """A function with `@DBOS.workflow()`."""

    name: str  # DBOS's name for it
    attribute: str  # its name in the module
    function: Callable[..., Any]  # Any: the user's parameters and result

    @property
    def settings(self) -> Mapping[str, JSON]:
        """The settings from `tool`."""
        return getattr(self.function, _TOOL, {})

    @property
    def is_private(self) -> bool:
        """True if its name or `expose=False` makes it private to this module: it becomes a tool only on request."""
        return self.attribute.startswith("_") or not self.settings.get("expose", True)

    @property
    def place(self) -> str:
        """The file and line of the function."""
        code = inspect.unwrap(self.function).__code__
        return f"{code.co_filename}:{code.co_firstlineno}"


def tool(workflow: Callable[..., Any], /, *, expose: bool = True, **settings: JSON) -> None:  # Any: the user's
    """Add settings to the tool of a workflow, besides name, schemas and docstring: `tool(order, title="Order",
    wait="30s")`.

    `settings` are the keys of a tool in workflows.yaml. `expose=False`: the function is not a tool. This is a call and
    not a decorator, because DBOS derives the version of the code from the source of workflows with their decorators: a
    new title would stop running executions.

    Raises:
        ValueError: the function has no `@DBOS.workflow()`, or a setting comes from the function itself or is not JSON.
    """
    if _workflow_name(workflow) is None:
        raise ValueError(f"tool({getattr(workflow, '__name__', workflow)}, ...) needs a function with @DBOS.workflow()")
    if derived := sorted(_DERIVED & settings.keys()):
        raise ValueError(f"tool({workflow.__name__}, ...) cannot set {', '.join(derived)}: the function gives it")
    if not isinstance(cast("object", expose), bool):  # "false" would expose it
        raise ValueError(f"tool({workflow.__name__}, ...) cannot set expose to {expose!r}: it is True or False")
    for name, value in settings.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            example = "write it as in workflows.yaml: wait='30s'"
            raise ValueError(f"tool({workflow.__name__}, ...) cannot set {name} to {value!r:.100}; {example}") from None
    setattr(workflow, _TOOL, {**settings, "expose": expose})


def load_module(name: str) -> ModuleType:
    """Import the module.

    Raises:
        ConfigError: its import fails or exits, or creates a DBOS object; the message has the file and line.
    """
    if name in sys.modules:
        return sys.modules[name]
    before = _instance()
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(f"there is no module {name!r} here: put {name}.py beside the configuration") from None
        raise ConfigError(_import_problem(name, error)) from None
    except SystemExit as error:
        raise ConfigError(f"{_place(error)}: it exits while it is imported: put that under if __name__") from None
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything
        raise ConfigError(_import_problem(name, error)) from None
    if before is None and _instance() is not None:
        DBOS.destroy()
        del sys.modules[name]
        text = "it makes a DBOS object: leave that out, or put it under if __name__; here the engine's settings count"
        raise ConfigError(f"{module.__file__}: {text}")
    _check_forms(module)
    return module


def _check_forms(module: ModuleType) -> None:
    """Check the forms in calls of `ask` in this module that use constants and names at the top of the module.

    A form that is made while the workflow runs can only be checked then.

    Raises:
        ConfigError: no client can show one; the message has the file and line.
    """
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError):  # no source
        return
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        named = [word.value for word in call.keywords if word.arg == "schema"]
        for written in (*call.args[1:2], *named):
            if _value(call.func, module) is ask and isinstance(schema := _value(written, module), type | Mapping):
                try:
                    read_form(cast("type | Mapping[str, Any]", schema))
                except ValueError as error:
                    raise ConfigError(f"{module.__file__}:{call.lineno}: {error}") from None


def _value(expression: ast.expr, module: ModuleType) -> object:
    """Return the value of an expression without calls; None if it needs more than the names of the module."""
    if not all(isinstance(node, _PLAIN) for node in ast.walk(expression)):
        return None
    try:
        return eval(compile(ast.Expression(expression), "", "eval"), vars(module))  # noqa: S307  # the user's own code
    except Exception:  # noqa: BLE001  # the user's code may raise anything
        return None


def workflows_in(module: ModuleType) -> Mapping[str, WorkflowFunction]:
    """Return the workflows that this module defines, by DBOS's names for them, in source order."""
    found: dict[str, WorkflowFunction] = {}
    for attribute, value in vars(module).items():
        name = _workflow_name(value)
        if name is not None and inspect.unwrap(value).__module__ == module.__name__:
            found[name] = WorkflowFunction(name=name, attribute=attribute, function=value)
    return found


def hidden_workflows_in(module: ModuleType) -> Sequence[str]:
    """Return a line, with file and line number, for each workflow of this module that is not in `workflows_in`."""
    known = workflows_in(module)
    hidden = {
        name: inspect.unwrap(each).__code__
        for name, each in _registered().items()
        if not name.startswith(_STEP) and name not in known and inspect.unwrap(each).__module__ == module.__name__
    }
    return [
        f"{code.co_filename}:{code.co_firstlineno}: {code.co_qualname} is no tool: only functions at the top of a "
        "module are; call it from one of these"
        for code in hidden.values()
    ]


def _registered() -> Mapping[str, Callable[..., Any]]:  # Any: the users' parameters and results
    """Return the workflows of this process by DBOS's names; DBOS (3.4) has no public way to list them."""
    registry: Any = getattr(sys.modules["dbos._dbos"], "_dbos_global_registry", None)  # Any: DBOS's own
    return {} if registry is None else registry.workflow_info_map


def fail_on_exit(folder: Path) -> None:
    """Make each workflow of this process fail if it raises one of `_EXITS`; DBOS would leave it `PENDING` forever.

    Wrap the attribute `__orig_func`, which DBOS (3.4) calls for each start, recovery and dequeue.
    """
    for workflow in _registered().values():
        original = getattr(workflow, _ORIGINAL)
        if not hasattr(original, _WRAPPED):
            setattr(workflow, _ORIGINAL, _wrap(original, folder))


def _wrap(function: Callable[..., Any], folder: Path) -> Callable[..., Any]:  # as the user's function
    @contextmanager
    def exit_as_failure() -> Generator[None]:
        try:
            yield
        except tuple(_EXITS) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            place = place_in(folder, error.__traceback__) or function.__name__
            did = next(did for kind, did in _EXITS.items() if isinstance(error, kind))
            raise WorkflowExitError(f"{place}: it {did}: raise an exception in its place") from None

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        with exit_as_failure():
            return function(*args, **named)

    @wraps(function)
    async def call_async(*args: Any, **named: Any) -> Any:
        with exit_as_failure():
            return await function(*args, **named)

    wrapped = call_async if inspect.iscoroutinefunction(function) else call
    setattr(wrapped, _WRAPPED, True)
    return wrapped


def _is_cancelled() -> bool:
    """True if the current task must end, as at the end of the process; a function without `async` has no task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0


def folder_of(module: ModuleType) -> Path:
    """Return the folder of the module's file."""
    return Path(module.__file__ or "").resolve().parent


def place_in(folder: Path, trace: TracebackType | None) -> str | None:
    """Return `file:line` of the innermost frame of a traceback in this folder, or None."""
    frames = [frame for frame in traceback.extract_tb(trace) if Path(frame.filename).resolve().is_relative_to(folder)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def _instance() -> object:
    """Return the DBOS object of this process, or None; DBOS (3.4) has no public way to ask for it."""
    return getattr(sys.modules["dbos._dbos"], "_dbos_global_instance", None)


def _workflow_name(value: object) -> str | None:
    """Return DBOS's name of a decorated workflow, or None; DBOS (3.4) has no public way to ask for it."""
    original = getattr(value, _ORIGINAL, None)
    name = cast("str | None", getattr(original, "dbos_function_name", None))
    return None if name is None or name.startswith(_STEP) else name


def _import_problem(name: str, error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    return f"{_place(error) or name}: {type(error).__name__}: {error}"


def _place(error: BaseException) -> str | None:
    """Return `file:line` of the innermost frame of an error outside libraries and our code, or None."""
    frames = traceback.extract_tb(error.__traceback__)
    no_library = [each for each in frames if "importlib" not in each.filename and "site-packages" not in each.filename]
    found = [each for each in no_library if not Path(each.filename).resolve().is_relative_to(Path(__file__).parent)]
    return f"{found[-1].filename}:{found[-1].lineno}" if found else None
