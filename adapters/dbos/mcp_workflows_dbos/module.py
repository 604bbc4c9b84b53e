"""The user's module with workflows: import it, find the workflows in it, tell where a mistake is."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, cast

from dbos import DBOS

from mcp_workflows.errors import ConfigError

_STEP: Final = "<temp>."  # DBOS's name for the workflow that it makes of a step which is called on its own


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
    original = getattr(value, "__orig_func", None)
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
