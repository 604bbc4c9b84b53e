"""What the configuration names in code: `module:attribute`."""

from __future__ import annotations

from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any, cast

from mcp_workflows.access import Authorizer
from mcp_workflows.errors import ConfigError


def load_authorizer(reference: str) -> Authorizer:
    """The authorizer of that name.

    Raises:
        ConfigError: it cannot be imported, or is no async function of one argument.
    """
    found = _attribute(reference)
    if not (iscoroutinefunction(found) or iscoroutinefunction(getattr(found, "__call__", None))):  # noqa: B004  # which one it is matters
        raise ConfigError(f"{reference} must be an async function of one argument, see: mcp-workflows docs access")
    return cast("Authorizer", found)


def _attribute(reference: str) -> Any:  # Any: whatever is there
    module, _, path = reference.partition(":")
    try:
        found: Any = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ConfigError(f"{reference} cannot be imported ({type(error).__name__}: {error})") from None
    return found
