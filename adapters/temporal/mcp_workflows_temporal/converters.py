"""The user's own DataConverter, from the code they name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from temporalio.converter import DataConverter

from mcp_workflows.errors import ConfigError

BROKEN = (  # what code that is imported or called for the first time raises, if it is not right
    ImportError,
    SyntaxError,
    NameError,
    AttributeError,
    TypeError,
    ValueError,
    RuntimeError,
    OSError,
    LookupError,
)


def load_converter(reference: str) -> DataConverter:
    """The DataConverter behind `module:attribute`: one, a class of it, or something to call that gives one.

    Raises:
        ConfigError: there is none.
    """
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{reference!r} is not module:attribute")
    try:
        found: Any = getattr(import_module(module_name), name)  # Any: whatever is there
        made: object = found if isinstance(found, DataConverter) or not callable(found) else found()
    except BROKEN as error:
        raise ConfigError(f"{reference} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(made, DataConverter):
        raise ConfigError(f"{reference} is a {type(made).__name__}: a temporalio DataConverter is needed")
    return made
