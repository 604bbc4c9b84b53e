"""The extension `io.modelcontextprotocol/skills`: one skill for each tool that the caller may call.

Source: SEP-2640.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import INVALID_PARAMS, RequestError
from mcp_workflows.tools.skills import Skill, skills_of
from mcp_workflows.tools.tool import AnyTool
from mcp_workflows.wire.commands import Document
from mcp_workflows.wire.params import Params, object_of

EXTENSION: Final = "io.modelcontextprotocol/skills"
LIST: Final = "skills/list"
GET: Final = "skills/get"


def with_skills(declared: Params) -> dict[str, Any]:  # Any: JSON
    """Return the result of `initialize` or `server/discover` with the extension."""
    capabilities = object_of(declared.get("capabilities"))
    extensions: dict[str, JSON] = {**object_of(capabilities.get("extensions")), EXTENSION: {}}
    return {**declared, "capabilities": {"resources": {}, **capabilities, "extensions": extensions}}


def is_skill(uri: object) -> bool:
    """Return True if a resource of this address is a file of a skill."""
    return isinstance(uri, str) and uri.startswith("skill://")


def respond(method: str, params: Params, tools: Iterable[AnyTool], *, is_modern: bool) -> dict[str, Any]:  # Any: JSON
    """Return the result of `skills/list` or `skills/get`.

    Raises:
        RequestError: there is no such skill.
    """
    hints = {"ttlMs": 0, "cacheScope": "private"} if is_modern else {}
    if method == GET:
        return {"skill": _entry(_find(params.get("uri"), tools))}
    return {"skills": [_entry(each) for each in skills_of(tools).values()], **hints}


def read(uri: object, tools: Iterable[AnyTool]) -> Document:
    """Return the file of a skill.

    Raises:
        RequestError: there is no such file.
    """
    skill = _find(uri, tools)
    return Document(uri=_uri(skill), mime_type="text/markdown", text=skill.text)


def _find(uri: object, tools: Iterable[AnyTool]) -> Skill:
    found = next((each for each in skills_of(tools).values() if _uri(each) == uri), None)
    if found is None:
        raise RequestError(INVALID_PARAMS, "Resource not found", {"uri": uri} if isinstance(uri, str) else None)
    return found


def _uri(skill: Skill) -> str:
    return f"skill://{skill.name}/SKILL.md"


def _entry(skill: Skill) -> Mapping[str, JSON]:
    content = skill.text.encode()
    file = {"uri": _uri(skill), "digest": f"sha256:{sha256(content).hexdigest()}", "size": len(content)}
    return {"uri": _uri(skill), "frontmatter": skill.frontmatter, "resources": [file]}
