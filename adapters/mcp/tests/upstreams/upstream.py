"""MCP servers that nobody here wrote: how each is started, and stand-ins for the HTTP APIs behind them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import psutil
from ruamel.yaml import YAML
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tests.support.child_processes import is_taken
from tests.support.engine_process import EngineProcess
from tests.support.environments import NODE, npm_packages

PACKAGES: Final = Path(__file__).with_name("package.json")
_EXAMPLES: Final = Path(__file__).parents[4] / "samples" / "mcp"

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
_Reply: TypeAlias = Callable[[Request, Endpoint], Awaitable[Response]]


@cache
def documented_engines() -> Mapping[str, Mapping[str, Any]]:
    """Return the engines of samples/mcp by name."""
    load = YAML(typ="safe").load  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    files = sorted(_EXAMPLES.glob("*.yaml"))
    return {name: engine for file in files for name, engine in load(file.read_text())["engines"].items()}


def documented_engine(name: str) -> Mapping[str, Any]:
    """Return the settings of an example."""
    return documented_engines()[name]


def npm_command(script: str) -> Sequence[str]:
    """Return the command of an npm server; `script` is the path of its program below node_modules."""
    return [str(NODE), str(npm_packages("upstreams", PACKAGES) / script)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """An MCP server as a child process, over stdio."""

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    def engine(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the settings of an engine that starts it, in place of the command and the variables of `config`."""
        return {**config, "command": list(self.command), "env": dict(self.env)}

    def processes(self) -> Sequence[psutil.Process]:
        """Return the children of this process that run its command now."""
        return [each for each in psutil.Process().children(recursive=True) if self._runs_in(each)]

    def _runs_in(self, process: psutil.Process) -> bool:
        try:
            told = process.cmdline()
        except psutil.NoSuchProcess:
            return False
        return told[-len(self.command) :] == list(self.command)  # a script has its interpreter before it


class UpstreamOverHttp(EngineProcess):
    """The same server as a process that listens; it can be killed, frozen and started again on its port."""

    def __init__(self, folder: Path, command: Callable[[int], Upstream], path: str = "/mcp") -> None:
        super().__init__(folder, None, "upstream.log")
        self._server = command(self.port)
        self._path = path

    def argv(self) -> Sequence[str]:
        """Its command, with its variables."""
        given = [f"{name}={value}" for name, value in self._server.env.items()]
        return ["/usr/bin/env", *given, *self._server.command]

    def answers(self) -> bool:
        """Whether it listens."""
        return is_taken(self.port)

    def stop(self) -> None:
        """Kill it: some of these servers take no notice of SIGTERM."""
        if self.is_running:
            self.kill()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}{self._path}"

    def engine(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the settings of an engine that connects to it."""
        kept = {name: value for name, value in config.items() if name not in {"command", "env"}}
        return {**kept, "url": self.url}


class StandIn:
    """An HTTP API in this process, whose replies can be lost; requests are counted by the name of their endpoint."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.url = ""
        self._needed = headers
        self.calls: Counter[str] = Counter()
        self._replies: defaultdict[str, list[_Reply]] = defaultdict(list)

    def endpoint(self, serve: Endpoint) -> Endpoint:
        """Return the endpoint as routes have it."""

        async def served(request: Request) -> Response:
            self.calls[serve.__name__] += 1
            if any(request.headers.get(name) != value for name, value in self._needed.items()):
                return JSONResponse({"error": "Unauthorized", "message": "401 Unauthorized"}, status_code=401)
            waiting = self._replies[serve.__name__]
            return await waiting.pop(0)(request, serve) if waiting else await serve(request)

        return served

    def answer(self, name: str, reply: Response, *, times: int = 1) -> None:
        """Let the next requests of this endpoint do nothing, and be answered so."""

        async def instead(_: Request, __: Endpoint) -> Response:
            return reply

        self._replies[name] += [instead] * times

    def cut(self, name: str) -> None:
        """Let the next request of this endpoint be carried out, and its reply be lost with the connection."""

        async def after(request: Request, serve: Endpoint) -> Response:
            await serve(request)
            return _Cut()

        self._replies[name].append(after)


class _Cut(Response):
    """A reply that ends before its body does."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
