"""Hosts that run headless, the situations that `make hosts` tries, and the expected cells of docs/use/clients.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from signal import Signals
from typing import Final, TypeAlias

from tests.clients.host_model import ANSWER, FOLLOW, TASK_ID
from tests.support.environments import ROOT

PACKAGES: Final = ROOT / "tests" / "clients" / "hosts"
SERVER: Final = "workflows"  # our server, by the name in a host's configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The connections of a host: its scripted model, and our server by URL or by command."""

    model: str
    url: str = ""
    command: Sequence[str] = ()


Files: TypeAlias = Mapping[str, str]
"""Configuration files, by their path in the home folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A conversation of one or two prompts, with the calls that the model makes, and a signal for the host."""

    title: str
    plays: Sequence[Sequence[object]]
    signal: Signals | None = None  # sent to the host while the workflow of the first prompt runs


def _call(tool: str, **arguments: object) -> Mapping[str, object]:
    return {"call": tool, "arguments": arguments}


_ASKED: Final = (ANSWER, FOLLOW)
_FOUND_AGAIN: Final = (_call("my_tasks"), _call("task_wait", taskId=TASK_ID), FOLLOW)

SITUATIONS: Mapping[str, Situation] = {
    "result": Situation(title="result", plays=[[_call("greet", name="Ada")]]),
    "question": Situation(title="question", plays=[[_call("order", item="tea"), FOLLOW], _ASKED]),
    "approval": Situation(title="question without a form", plays=[[_call("ship", item="tea"), FOLLOW], _ASKED]),
    "cancel": Situation(
        title="cancel", plays=[[_call("build_soon", seconds=120), _call("task_cancel", taskId=TASK_ID), FOLLOW]]
    ),
    "minutes": Situation(title="three minutes", plays=[[_call("build", seconds=180), FOLLOW]]),
    "at_once": Situation(title="three minutes in one call", plays=[[_call("build_at_once", seconds=180)]]),
    "stopped": Situation(
        title="stopped by the person", plays=[[_call("build", seconds=25), FOLLOW], _FOUND_AGAIN], signal=Signals.SIGINT
    ),
    "killed": Situation(
        title="killed, and resumed", plays=[[_call("build", seconds=25), FOLLOW], _FOUND_AGAIN], signal=Signals.SIGKILL
    ),
    "length": Situation(title="a result of 300 kB", plays=[[_call("report", lines=3000)]]),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host: its program, its configuration, and its command lines."""

    title: str
    folder: str  # in tests/clients/hosts, with its package.json
    program: str  # below node_modules; the first that matches
    files: Callable[[Target], Files]
    run: Sequence[str]  # the prompt follows
    resume: Sequence[str]
    environment: Callable[[Target], Mapping[str, str]] = lambda _: {}
    revision: str = ""
    declares: Sequence[str] = ()
    revision_on_stdio: str = ""  # if it differs
    declares_on_stdio: Sequence[str] = ()  # in addition
    calls: str = ""  # the name by which the model calls `greet`
    sees: Mapping[str, str] = field(default_factory=dict[str, str])
    sees_on_stdio: Mapping[str, str] = field(default_factory=dict[str, str])  # where it differs

    @property
    def pinned(self) -> str:
        """The package with its version."""
        found: dict[str, dict[str, str]] = json.loads((PACKAGES / self.folder / "package.json").read_text())
        return next(f"{package}@{version}" for package, version in found["dependencies"].items())


def _codex(target: Target) -> Files:
    lines = [
        'model = "scripted"',
        'model_provider = "stub"',
        "[model_providers.stub]",
        'name = "stub"',
        f'base_url = "{target.model}/v1"',
        'wire_api = "responses"',
        f"[mcp_servers.{SERVER}]",
        'default_tools_approval_mode = "approve"',  # `exec` can ask nobody, and refuses what may destroy something
        "required = true",  # `exec` begins without a server that takes longer to start than a second or two
    ]
    if target.url:
        lines.append(f"url = {json.dumps(target.url)}")
    else:
        lines += [f"command = {json.dumps(target.command[0])}", f"args = {json.dumps(target.command[1:])}"]
    return {".codex/config.toml": "\n".join(lines)}


def _gemini(target: Target) -> Files:
    entry = {"httpUrl": target.url} if target.url else {"command": target.command[0], "args": target.command[1:]}
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "mcpServers": {SERVER: entry},
    }
    return {".gemini/settings.json": json.dumps(settings)}


def _opencode(target: Target) -> Files:
    options = {"baseURL": f"{target.model}/v1", "apiKey": "none"}
    models = {"scripted": {"name": "scripted", "limit": {"context": 200_000, "output": 8_000}}}
    entry = {"type": "remote", "url": target.url} if target.url else {"type": "local", "command": target.command}
    settings = {
        "model": "stub/scripted",
        "autoupdate": False,
        "provider": {"stub": {"npm": "@ai-sdk/openai-compatible", "options": options, "models": models}},
        "mcp": {SERVER: entry},
    }
    return {".config/opencode/opencode.json": json.dumps(settings)}


_WITHOUT_ELICITATION: Final[Mapping[str, str]] = {
    "result": "result",
    "question": "question, result",
    "approval": "question, result",
    "cancel": "handle, cancelled",
    "minutes": "handle, result",
    "at_once": "result",
    "killed": "list, result",
}
"""The cells of a host that does not declare elicitation."""

_CODEX_RUN: Final = ("exec", "--skip-git-repo-check")
_CODEX_RESUME: Final = ("exec", "resume", "--last", "--skip-git-repo-check")
_FULL_ACCESS: Final = "--dangerously-bypass-approvals-and-sandbox"
_NEXT_REVISION: Final = ("--enable", "mcp_2026_07_28")

_CODEX: Final = Host(
    title="Codex CLI",
    folder="codex",
    program="@openai/codex-*/vendor/*/bin/codex",
    files=_codex,
    run=_CODEX_RUN,
    resume=_CODEX_RESUME,
    revision="2025-06-18",
    declares=("elicitation",),
    declares_on_stdio=("experimental",),
    calls="mcp__workflows/greet",
    sees={
        **_WITHOUT_ELICITATION,
        "question": "declined",
        "approval": "declined",
        "stopped": "notified, list, result",
        "length": "12 kB",
    },
)

HOSTS: Mapping[str, Host] = {
    "codex": _CODEX,
    "codex-2026": replace(
        _CODEX,
        title="Codex CLI with `mcp_2026_07_28`",
        run=(*_CODEX_RUN, *_NEXT_REVISION),
        resume=(*_CODEX_RESUME, *_NEXT_REVISION),
        revision="2026-07-28",
        revision_on_stdio="2025-06-18",
        sees={**_CODEX.sees, "stopped": "list, result"},
        sees_on_stdio={"stopped": "notified, list, result"},
    ),
    "codex-full": replace(
        _CODEX,
        title="Codex CLI with full access",
        run=(*_CODEX_RUN, _FULL_ACCESS),
        resume=(*_CODEX_RESUME, _FULL_ACCESS),
        sees={"question": "declined", "approval": "result"},
    ),
    "gemini": Host(
        title="Gemini CLI",
        folder="gemini",
        program=".bin/gemini",
        files=_gemini,
        run=("--skip-trust", "--approval-mode", "yolo", "-m", "gemini-2.5-pro", "-p"),
        resume=("--skip-trust", "--approval-mode", "yolo", "-m", "gemini-2.5-pro", "--resume", "latest", "-p"),
        revision="2025-06-18",
        declares=("roots",),
        calls="mcp_workflows_greet",
        sees={**_WITHOUT_ELICITATION, "stopped": "list, result", "length": "40 kB"},
        environment=lambda target: {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": target.model},
    ),
    "opencode": Host(
        title="opencode",
        folder="opencode",
        program="opencode-*/bin/opencode",
        files=_opencode,
        run=("run",),
        resume=("run", "--continue"),
        revision="2025-11-25",
        declares=("roots",),
        calls="workflows_greet",
        sees={**_WITHOUT_ELICITATION, "stopped": "list, result", "length": "52 kB"},
    ),
}
