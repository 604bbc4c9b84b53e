"""A world for workflows that run in the test itself: what they send is kept, and answered as the test says."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mcp_workflows_google.tooling.subworkflows import embedded_files
from mcp_workflows_google_local.language.errors import Tag, failure
from mcp_workflows_google_local.language.host import Path, Step
from mcp_workflows_google_local.language.source import load

from adapters.google.tests.tell import url

SERVER: Final = "https://tasks.example.com/engines/shop"
Reply = int | Tag | Mapping[str, Any]  # a status, an error, or the body of a 200
Answer = Mapping[str, Any] | Tag


class World:
    """A host that replies to requests with the first reply that is left, the last one for ever."""

    def __init__(self, *replies: Reply, answers: Sequence[Answer] = (), env: Mapping[str, str] | None = None) -> None:
        self.env = {
            "GOOGLE_CLOUD_PROJECT_ID": "shop-123",
            "GOOGLE_CLOUD_PROJECT_NUMBER": "1234567890",
            "GOOGLE_CLOUD_LOCATION": "europe-west1",
            "GOOGLE_CLOUD_WORKFLOW_ID": "refund",
            "GOOGLE_CLOUD_WORKFLOW_EXECUTION_ID": "e-1",
            **({"MCP_WORKFLOWS_URL": SERVER} if env is None else env),
        }
        self.replies = list(replies or [{"kept": True}])
        self.answers = list(answers)
        self.requests: list[Mapping[str, Any]] = []
        self.sleeps: list[float] = []
        self.waits: list[Mapping[str, Any]] = []
        self._opened = 0
        self._effects: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
            "http.request": self._request,
            "sys.sleep": self._sleep,
            "events.create_callback_endpoint": self._open,
            "events.await_callback": self._wait,
        }

    @property
    def bodies(self) -> Sequence[Any]:
        """The JSON of each request."""
        return [json.loads(base64.b64decode(each["body"])) for each in self.requests]

    def at(self, steps: Sequence[Step]) -> None:
        """Nobody looks where it is."""

    async def effect(self, name: str, arguments: Mapping[str, Any], path: Path) -> Any:
        """Whatever the workflow does."""
        await asyncio.sleep(0)
        return self._effects[name](arguments)

    def _request(self, request: Mapping[str, Any]) -> Any:
        self.requests.append(request)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Tag):
            raise failure(reply, "there was no response")
        code, body = (reply, {"error": "s3cret"}) if isinstance(reply, int) else (200, reply)
        text = base64.b64encode(json.dumps(body).encode()).decode()
        return {"code": code, "headers": {"content-type": "application/json"}, "body": text}

    def _sleep(self, given: Mapping[str, Any]) -> None:
        self.sleeps.append(given["seconds"])

    def _open(self, given: Mapping[str, Any]) -> Any:
        assert given == {"http_callback_method": "POST"}
        self._opened += 1
        return {"url": url(f"cb-{self._opened}")}

    def _wait(self, given: Mapping[str, Any]) -> Any:
        self.waits.append(given)
        answer = self.answers.pop(0)
        if isinstance(answer, Tag):
            raise failure(answer, "nothing came")
        return {"http_request": {"body": answer, "headers": {}, "method": "POST", "query": {}}, "type": "HTTP"}


def run(source: str, world: World, argument: Any = None) -> Any:
    """What a workflow with our subworkflows returns."""
    return asyncio.run(load(f"{source}\n{embedded_files()['google']}").run(argument, world))
