"""Hosts that run headless, the situations they are put in, and what each is to see: the tables of docs/clients.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from signal import Signals
from typing import Final, TypeAlias

from scripts.environments import ROOT
from scripts.host_model import ANSWER, FOLLOW, TASK

PACKAGES: Final = ROOT / "tests" / "clients" / "hosts"
SERVER: Final = "workflows"  # our server, by the name in a host's configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a host connects to: the stub of its model, and our server by URL or by command."""

    model: str
    url: str = ""
    command: Sequence[str] = ()


Files: TypeAlias = Mapping[str, str]
"""Configuration files, by their path in the home folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the model plays, a conversation of one or two prompts, and what is done to the host during the first."""

    title: str
    plays: Sequence[Sequence[object]]
    signal: Signals | None = None  # sent while the workflow runs


def _call(tool: str, **arguments: object) -> Mapping[str, object]:
    return {"call": tool, "arguments": arguments}


_ASKED: Final = (ANSWER, FOLLOW)
_FOUND_AGAIN: Final = (_call("my_tasks"), _call("task_wait", taskId=TASK), FOLLOW)

SITUATIONS: Mapping[str, Situation] = {
    "result": Situation(title="result", plays=[[_call("greet", name="Ada")]]),
    "question": Situation(title="question", plays=[[_call("order", item="tea"), FOLLOW], _ASKED]),
    "approval": Situation(title="question without a form", plays=[[_call("ship", item="tea"), FOLLOW], _ASKED]),
    "cancel": Situation(
        title="cancel", plays=[[_call("build_soon", seconds=120), _call("task_cancel", taskId=TASK), FOLLOW]]
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
    revision_on_stdio: str = ""  # if it is another
    declares_on_stdio: Sequence[str] = ()  # beside those
    calls: str = ""  # how the model is to call `greet`
    sees: Mapping[str, str] = field(default_factory=dict[str, str])
    sees_on_stdio: Mapping[str, str] = field(default_factory=dict[str, str])  # where it is something else

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


_HANDED: Final[Mapping[str, str]] = {
    "result": "result",
    "question": "question, result",
    "approval": "question, result",
    "cancel": "handle, cancelled",
    "minutes": "handle, result",
    "at_once": "result",
    "killed": "list, result",
}
"""What a host sees that cannot be asked."""

_CODEX: Final = "@openai/codex-*/vendor/*/bin/codex"
_FULL_ACCESS: Final = "--dangerously-bypass-approvals-and-sandbox"

_NEXT_REVISION: Final = ("--enable", "mcp_2026_07_28")

HOSTS: Mapping[str, Host] = {
    "codex": Host(
        title="Codex CLI",
        folder="codex",
        program=_CODEX,
        files=_codex,
        run=("exec", "--skip-git-repo-check"),
        resume=("exec", "resume", "--last", "--skip-git-repo-check"),
        revision="2025-06-18",
        declares=("elicitation",),
        declares_on_stdio=("experimental",),
        calls="mcp__workflows/greet",
        sees={
            **_HANDED,
            "question": "declined",
            "approval": "declined",
            "stopped": "notified, list, result",
            "length": "12 kB",
        },
    ),
    "codex-2026": Host(
        title="Codex CLI with `mcp_2026_07_28`",
        folder="codex",
        program=_CODEX,
        files=_codex,
        run=("exec", "--skip-git-repo-check", *_NEXT_REVISION),
        resume=("exec", "resume", "--last", "--skip-git-repo-check", *_NEXT_REVISION),
        revision="2026-07-28",
        revision_on_stdio="2025-06-18",
        declares=("elicitation",),
        declares_on_stdio=("experimental",),
        calls="mcp__workflows/greet",
        sees={
            **_HANDED,
            "question": "declined",
            "approval": "declined",
            "stopped": "list, result",
            "length": "12 kB",
        },
        sees_on_stdio={"stopped": "notified, list, result"},
    ),
    "codex-full": Host(
        title="Codex CLI with full access",
        folder="codex",
        program=_CODEX,
        files=_codex,
        run=("exec", "--skip-git-repo-check", _FULL_ACCESS),
        resume=("exec", "resume", "--last", "--skip-git-repo-check", _FULL_ACCESS),
        revision="2025-06-18",
        declares=("elicitation",),
        declares_on_stdio=("experimental",),
        calls="mcp__workflows/greet",
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
        sees={**_HANDED, "stopped": "list, result", "length": "40 kB"},
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
        sees={**_HANDED, "stopped": "list, result", "length": "52 kB"},
    ),
}
