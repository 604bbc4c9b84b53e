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
from mcp_workflows.receiver.tool_list import description_of
from mcp_workflows.tools.tool import AnyTool, Kind
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
    does = " ".join(cleaned(description_of(tool), MAX_DESCRIPTION - 200).split()).rstrip(".")
    return f"{does}. Read this before you call the MCP tool {tool.name}, and while its workflow runs."


def _lines(tool: AnyTool) -> Iterator[str]:
    """Yield the lines of the page: purpose, arguments, questions, the wait, actions, and the rule of one call."""
    yield f"# {cleaned(tool.title or tool.name)}"
    yield from ("", cleaned(description_of(tool)))
    if arguments := list(_arguments(tool)):
        yield from ("", "## Arguments", "", *arguments)
    if questions := list(_questions(tool)):
        yield from ("", "## Questions", "", *questions)
    yield from ("", "## While it runs", "", _WAITING if tool.hands_over else "The call returns the result.")
    if tool.hands_over and tool.may_cancel:
        yield "4. To stop the workflow, call `task_cancel`, and only if the user wants it."
    if tool.actions:
        sent = [f"- `{name}`: {cleaned(each.description or each.title or name)}" for name, each in tool.actions.items()]
        yield from ("", "## Actions", "", "Send one to the running workflow with `task_action`.", "", *sent)
    if tool.kind is Kind.START and tool.message is None:
        yield from ("", "## Call it once", "", _ONCE)


_ONCE: Final = """\
A second call can start a second workflow. Do not repeat the call to see the progress, because the workflow takes long,
or because a reply was lost. If you have no `taskId`, look for the task with `my_tasks`, if you have that tool, or ask
the user. Call again only if the user wants another run."""
_WAITING: Final = """\
The call returns the result, or a `taskId` if the workflow takes longer than the call may last.

1. Tell the user that it runs, and what it does now.
2. Call `task_wait` with the `taskId`. It returns the result, a question, or the status; then call it again. Or do other
   work first: the workflow does not need you.
3. In a later conversation, `my_tasks` lists the user's tasks, if you have that tool."""


def _arguments(tool: AnyTool) -> Iterator[str]:
    required = tool.input.get("required", [])
    for name, schema in (dict.fromkeys(required, True) | tool.input.get("properties", {})).items():
        known: Mapping[str, JSON] = {} if isinstance(schema, bool) else schema
        kind, about = known.get("type"), known.get("description")
        facts = [kind if isinstance(kind, str) else "any", "required" if name in required else "optional"]
        yield f"- `{cleaned(name)}` ({', '.join(facts)})" + (f": {cleaned(about)}" if isinstance(about, str) else "")
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


def respond(method: str, params: Params, skills: Iterable[Skill], *, is_modern: bool) -> dict[str, Any]:  # Any: JSON
    """Return the result of `skills/list` or `skills/get`.

    Raises:
        RequestError: there is no such skill.
    """
    kind = {"resultType": "complete"} if is_modern else {}
    if method == GET:
        return {**kind, "skill": _entry(_find(params.get("uri"), skills))}
    hints = {"ttlMs": 0, "cacheScope": "private"} if is_modern else {}
    return {**kind, "skills": [_entry(each) for each in skills], **hints}


def read(uri: object, skills: Iterable[Skill]) -> Document:
    """Return the file of a skill.

    Raises:
        RequestError: there is no such file.
    """
    skill = _find(uri, skills)
    return Document(uri=_uri(skill), mime_type="text/markdown", text=skill.text)


def _find(uri: object, skills: Iterable[Skill]) -> Skill:
    found = next((each for each in skills if _uri(each) == uri), None)
    if found is None:
        raise RequestError(INVALID_PARAMS, "Resource not found", {"uri": uri} if isinstance(uri, str) else None)
    return found


def _uri(skill: Skill) -> str:
    return f"skill://{skill.name}/SKILL.md"


def _entry(skill: Skill) -> Mapping[str, JSON]:
    content = skill.text.encode()
    file = {"uri": _uri(skill), "digest": f"sha256:{sha256(content).hexdigest()}", "size": len(content)}
    return {"uri": _uri(skill), "frontmatter": skill.frontmatter, "resources": [file]}
