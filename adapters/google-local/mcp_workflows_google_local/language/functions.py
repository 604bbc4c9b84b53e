"""Functions of the standard library: pure functions of values, and effects of the host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language.errors import Tag, WorkflowError, failure
from mcp_workflows_google_local.language.values import is_int, is_list, is_map, is_number, type_name

Effect: TypeAlias = Callable[[str, Mapping[str, JSON]], Awaitable[JSON]]
"""Performs one effect of the host, under the next path of this branch."""
Pure: TypeAlias = Callable[..., JSON]
Acting: TypeAlias = Callable[[Effect, Mapping[str, JSON]], Awaitable[JSON]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function: `pure` gets its arguments by position; `acting` all of them by name, and the host's effects.

    `blocking`: Google allows it only in call steps.
    """

    name: str
    required: Sequence[str] = ()
    optional: Sequence[str] = ()
    pure: Pure | None = None
    acting: Acting | None = None
    blocking: bool = False

    @property
    def parameters(self) -> Sequence[str]:
        """The names of all its parameters in order."""
        return (*self.required, *self.optional)

    @property
    def signature(self) -> str:
        """Its parameters, for people."""
        return ", ".join((*self.required, *(f"{name}?" for name in self.optional)))

    @property
    def where(self) -> str:
        """The places where it may be called, for people."""
        return "call steps" if self.blocking else "expressions and call steps"

    async def apply(self, arguments: Mapping[str, JSON], effect: Effect) -> JSON:
        """Return the result for these arguments, whose names were checked."""
        if self.acting:
            return await self.acting(effect, arguments)
        assert self.pure
        return self.pure(**{_python(name): value for name, value in arguments.items()})


def _python(name: str) -> str:
    return f"{name}_" if name in ("if", "map", "list") else name


Check: TypeAlias = Callable[[JSON], bool]

_CHECKS: Final[Mapping[str, Check]] = {
    "string": lambda value: isinstance(value, str),
    "bytes": lambda value: isinstance(value, bytes),
    "map": is_map,
    "list": is_list,
    "integer": is_int,
    "number": is_number,
    "boolean": lambda value: isinstance(value, bool),
}


def wrong(function: str, name: str, wanted: str, value: JSON) -> WorkflowError:
    """Return a TypeError about an argument."""
    return failure(Tag.TYPE, f"{function}: {name} must be a {wanted}; got: {type_name(value)}")


def need(function: str, wanted: str, **values: JSON) -> None:
    """Check that all these values have this type.

    Raises:
        WorkflowError: TypeError.
    """
    for name, value in values.items():
        if not _CHECKS[wanted](value):
            raise wrong(function, name.rstrip("_"), wanted, value)
