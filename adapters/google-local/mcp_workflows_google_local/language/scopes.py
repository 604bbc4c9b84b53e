"""Variables of a running workflow: nested scopes, and their total memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language.errors import Tag, failure
from mcp_workflows_google_local.language.operators import bounded
from mcp_workflows_google_local.language.values import MEMORY_LIMIT, is_list, is_map, size


@dataclass(slots=True, kw_only=True)
class Memory:
    """The bytes of all variables of an execution."""

    used: int = 0

    def take(self, change: int) -> None:
        """Add bytes, or subtract them if negative.

        Raises:
            WorkflowError: ResourceLimitError, the total would exceed 512 KB; it does not change then.
        """
        if change > 0 and self.used + change > MEMORY_LIMIT:
            raise failure(Tag.RESOURCE_LIMIT, "the variables take more than 512 KB: assign null to what is done with")
        self.used += change


@dataclass(slots=True, kw_only=True)
class Scope:
    """The variables of a routine, loop, except or branch; outer ones are also visible."""

    memory: Memory
    outside: Scope | None = None
    values: dict[str, JSON] = field(default_factory=dict[str, JSON])
    sizes: dict[str, int] = field(default_factory=dict[str, int])

    def owner(self, name: str) -> Scope | None:
        """Return the nearest scope with this variable."""
        scope: Scope | None = self
        while scope is not None and name not in scope.values:
            scope = scope.outside
        return scope

    def read(self, name: str) -> JSON:
        """Return the value of a variable.

        Raises:
            WorkflowError: KeyError, the variable has no value yet.
        """
        owner = self.owner(name)
        if owner is None:
            raise failure(Tag.KEY, f"variable not found: {name}")
        return owner.values[name]

    def assign(self, name: str, value: JSON) -> None:
        """Assign to an existing variable, or to a new one in this scope."""
        (self.owner(name) or self).declare(name, value)

    def declare(self, name: str, value: JSON) -> None:
        """Create a variable in this scope.

        Raises:
            WorkflowError: ResourceLimitError, strings or variables are too large.
        """
        for text in _texts(value):
            bounded(text)
        taken = size(value)
        self.memory.take(taken - self.sizes.get(name, 0))
        self.values[name] = value
        self.sizes[name] = taken

    def close(self) -> None:
        """Delete the variables of this scope."""
        self.memory.take(-sum(self.sizes.values()))
        self.values.clear()
        self.sizes.clear()


def _texts(value: JSON) -> list[str]:
    """Return the strings in a value that might be too large."""
    if isinstance(value, str):
        return [value]
    items = value.values() if is_map(value) else value if is_list(value) else ()
    return [text for item in items for text in _texts(item)]
