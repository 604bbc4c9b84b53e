"""The user's module with workflows: import it, find the workflows in it, tell where a mistake is."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, cast

from dbos import DBOS

from mcp_workflows.errors import ConfigError

_STEP: Final = "<temp>."  # DBOS's name for the workflow that it makes of a step which is called on its own


_ORIGINAL: Final = "__orig_func"
_FAILS: Final = "mcp_workflows_fails_on_exit"


class WorkflowExitError(Exception):
    """The failure of a workflow that called `sys.exit`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowFunction:
    """A function with `@DBOS.workflow()`."""

    name: str  # DBOS's name for it
    attribute: str  # its name in the module
    function: Callable[..., Any]  # Any: the user's parameters and result


def load_module(name: str) -> ModuleType:
    """Import the module.

    Raises:
        ConfigError: it cannot be imported, it ends the process, or it launches DBOS by itself; with file and line.
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
    except Exception as error:  # noqa: BLE001  # it is the user's code: anything may come
        raise ConfigError(_import_problem(name, error)) from None
    if before is None and _instance() is not None:
        DBOS.destroy()
        del sys.modules[name]
        text = "it makes a DBOS object: leave that out, or put it under if __name__; here the engine's settings count"
        raise ConfigError(f"{module.__file__}: {text}")
    return module


def workflows_in(module: ModuleType) -> Mapping[str, WorkflowFunction]:
    """Return the workflows that are functions of this module, by DBOS's name, in the order of the source."""
    found: dict[str, WorkflowFunction] = {}
    for attribute, value in vars(module).items():
        name = _workflow_name(value)
        if name is not None and inspect.unwrap(value).__module__ == module.__name__:
            found[name] = WorkflowFunction(name=name, attribute=attribute, function=value)
    return found


def fail_on_exit(folder: Path) -> None:
    """Make each workflow of this process fail if it calls `sys.exit`: DBOS would leave its execution running for ever.

    DBOS (3.4) calls the attribute `__orig_func` for executions that are started, recovered or taken from a queue.
    """
    registry: Any = getattr(sys.modules["dbos._dbos"], "_dbos_global_registry", None)  # Any: DBOS's own
    known: Mapping[str, Callable[..., Any]] = {} if registry is None else registry.workflow_info_map
    for workflow in known.values():
        original = getattr(workflow, _ORIGINAL)
        if not hasattr(original, _FAILS):
            setattr(workflow, _ORIGINAL, _failing_on_exit(original, folder))


def _failing_on_exit(function: Callable[..., Any], folder: Path) -> Callable[..., Any]:  # Any: as the user's function
    @contextmanager
    def failing() -> Generator[None]:
        try:
            yield
        except SystemExit as error:
            place = place_in(folder, error.__traceback__) or function.__name__
            raise WorkflowExitError(f"{place}: it called exit: raise an exception in its place") from None

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        with failing():
            return function(*args, **named)

    @wraps(function)
    async def call_async(*args: Any, **named: Any) -> Any:
        with failing():
            return await function(*args, **named)

    found = call_async if inspect.iscoroutinefunction(function) else call
    setattr(found, _FAILS, True)
    return found


def folder_of(module: ModuleType) -> Path:
    """Return the folder of the module's file."""
    return Path(module.__file__ or "").resolve().parent


def place_in(folder: Path, trace: TracebackType | None) -> str | None:
    """Return `file:line` of the innermost frame of a trace in this folder; None if there is none."""
    frames = [frame for frame in traceback.extract_tb(trace) if Path(frame.filename).resolve().is_relative_to(folder)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def _instance() -> object:
    """Return the DBOS object of this process, or None; DBOS (3.4) has no public way to ask for it."""
    return getattr(sys.modules["dbos._dbos"], "_dbos_global_instance", None)


def _workflow_name(value: object) -> str | None:
    """Return DBOS's name of a decorated workflow; DBOS (3.4) has no public way to ask for it."""
    original = getattr(value, _ORIGINAL, None)
    name = cast("str | None", getattr(original, "dbos_function_name", None))
    return None if name is None or name.startswith(_STEP) else name


def _import_problem(name: str, error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    return f"{_place(error) or name}: {type(error).__name__}: {error}"


def _place(error: BaseException) -> str | None:
    """Return the innermost place of an error that is no library's."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [each for each in frames if "importlib" not in each.filename and "site-packages" not in each.filename]
    ours = [each for each in theirs if not Path(each.filename).resolve().is_relative_to(Path(__file__).parent)]
    return f"{ours[-1].filename}:{ours[-1].lineno}" if ours else None
