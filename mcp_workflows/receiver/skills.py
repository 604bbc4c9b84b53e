"""Agent Skills: for each tool a page that teaches a model how to use it, and the extension that serves these pages.

Sources: https://agentskills.io/specification, and SEP-2640 for `io.modelcontextprotocol/skills`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from mcp_workflows.adapter import JSON
from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.errors import INVALID_PARAMS, RequestError
from mcp_workflows.tools.tool import AnyTool, Kind, TaskSupport
from mcp_workflows.wire.commands import Document
from mcp_workflows.wire.params import Params, with_extension

EXTENSION: Final = "io.modelcontextprotocol/skills"
LIST: Final = "skills/list"
GET: Final = "skills/get"
MAX_DESCRIPTION: Final = 1024
_MAX_NAME: Final = 60  # 64 less a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """One skill: a folder `name` with the file SKILL.md."""

    name: str
    description: str
    body: str

    @property
    def frontmatter(self) -> Mapping[str, JSON]:
        """The fields at the beginning of SKILL.md."""
        return {"name": self.name, "description": self.description}

    @property
    def text(self) -> str:
        """SKILL.md."""
        fields = "".join(
            f"{name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in self.frontmatter.items()
        )
        return f"---\n{fields}---\n\n{self.body}"


def skills_of(tools: Iterable[AnyTool]) -> Mapping[str, Skill]:
    """Return the skill of each listed tool, by the tool's name."""
    found, taken = dict[str, Skill](), set[str]()
    for tool in tools:
        if tool.listed:
            name = _unused(re.sub(r"[^a-z0-9]+", "-", tool.name.lower()).strip("-")[:_MAX_NAME].strip("-"), taken)
            found[tool.name] = Skill(name=name, description=_description(tool), body="\n".join(_lines(tool)) + "\n")
    return found


def _unused(name: str, taken: set[str]) -> str:
    wanted = name or "tool"
    numbered = (f"{wanted}-{number}" for number in range(2, len(taken) + 3))
    free = wanted if wanted not in taken else next(each for each in numbered if each not in taken)
    taken.add(free)
    return free


def _description(tool: AnyTool) -> str:
    does = cleaned(tool.description or tool.title or f"Runs the workflow {tool.workflow}.", MAX_DESCRIPTION - 200)
    return f"{' '.join(does.split())} Read this before you call the MCP tool {tool.name}, and while its workflow runs."


def _lines(tool: AnyTool) -> Iterator[str]:
    """Yield the lines of the page: purpose, arguments, questions, the wait, actions, and the rule of one call."""
    yield f"# {cleaned(tool.title or tool.name)}"
    yield from ("", cleaned(tool.description or f"It runs the workflow {tool.workflow}."))
    if arguments := list(_arguments(tool)):
        yield from ("", "## Arguments", "", *arguments)
    if questions := list(_questions(tool)):
        yield from ("", "## Questions", "", *questions)
    waits = "The call returns the result." if tool.tasks is TaskSupport.FORBIDDEN else _WAITING
    yield from ("", "## While it runs", "", waits)
    if tool.actions:
        sent = [f"- `{name}`: {cleaned(each.description or each.title or name)}" for name, each in tool.actions.items()]
        yield from ("", "## Actions", "", "Send one to the running workflow with `task_action`.", "", *sent)
    if tool.kind is Kind.START and tool.message is None:
        yield from ("", "## Call it once", "", _ONCE)


_ONCE: Final = """\
A second call starts a second workflow. Never call the tool again to see how far it is, or because it takes long. If a
reply was lost, make exactly the same call once more: the server recognizes it. Call again only if the user asks for
another run."""
_WAITING: Final = """\
The call returns the result, or a `taskId` if the workflow takes longer than the call may last.

1. Tell the user that it runs, and what it does now.
2. Call `task_wait` with the `taskId`. It returns the result, a question, or the status; then call it again. Or do other
   work first: the workflow does not need you.
3. If the conversation ends, nothing is lost. `my_tasks` lists the user's tasks in any later one.
4. To stop the workflow, call `task_cancel`, and only if the user wants it."""


def _arguments(tool: AnyTool) -> Iterator[str]:
    required = tool.input.get("required", [])
    properties: Mapping[str, Mapping[str, JSON]] = tool.input.get("properties", {})
    for name, schema in properties.items():
        kind = schema.get("type")
        facts = [kind if isinstance(kind, str) else "any", "required" if name in required else "optional"]
        about = schema.get("description")
        yield f"- `{name}` ({', '.join(facts)})" + (f": {cleaned(about)}" if isinstance(about, str) else "")
    if required:
        yield from ("", "Ask the user for a required argument that you do not know. Do not invent it.")


def _questions(tool: AnyTool) -> Iterator[str]:
    before = [*tool.ask.values(), *([tool.confirmation[1]] if tool.confirmation else [])]
    yield from (f"- Before the start: {cleaned(each.message)}" for each in before)
    yield from (f"- While it runs: {cleaned(each.message)}" for each in tool.gates.values())
    if tool.approval is not None:
        yield f"- Before the start, another person must approve: {cleaned(tool.approval.message)}"
    if before or tool.gates:
        yield from (
            "",
            "Put each question to the user in these words, and pass on the answer. Never answer for the user.",
        )
    if tool.approval is not None or tool.approvals:
        yield from ("", "Tell the user who must approve. You cannot approve, and asking again changes nothing.")


def with_skills(declared: Params) -> dict[str, Any]:  # Any: JSON
    """Return the result of `initialize` or `server/discover` with the extension."""
    extended = with_extension(declared, EXTENSION)
    return {**extended, "capabilities": {"resources": {}, **extended["capabilities"]}}


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
