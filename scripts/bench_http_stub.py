"""A counting stub of GitHub's API for Actions: `python -m scripts.bench_http_stub PORT`, on core 1.

It answers with GitHub's own examples, counts calls as GitHub does, and refuses those beyond its limits: 5,000 an hour
(a 304 is free), and 900 points a minute (GET: 1, others: 5). `POST /bench/tell` says what its runs do next, `GET
/bench/report` returns what was asked. A reply takes as long as GitHub's.

Source: https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from scripts.bench_rounds import pin
from tests.support.environments import ROOT

DESCRIBED: Final = ROOT / "adapters" / "http" / "tests" / "github.openapi.json"
AN_HOUR: Final = 5000  # calls
A_MINUTE: Final = 900  # points
_PATH: Final = "/repos/{owner}/{repo}/actions"
_LATENCY: Final = {"list": 0.4}  # seconds; others:
_USUALLY: Final = 0.1
_REASONS: Final = {200: "OK", 202: "Accepted", 304: "Not Modified", 403: "Forbidden", 404: "Not Found"}


@dataclass(slots=True)
class Run:
    """One run."""

    status: str
    conclusion: str | None = None
    version: int = 0
    looked: float = field(default_factory=time.monotonic)  # when somebody last looked at it
    told: float = field(default_factory=time.monotonic)  # when somebody was last told of it, by a list also

    def change(self, status: str, conclusion: str | None = None) -> None:
        """It goes on."""
        self.status, self.conclusion, self.version = status, conclusion, self.version + 1


class Stub:
    """Runs, and calls by kind and time."""

    def __init__(self) -> None:
        paths = json.loads(DESCRIBED.read_text())["paths"]
        self._run: Mapping[str, Any] = paths[f"{_PATH}/runs/{{run_id}}"]["get"]["x-examples"]["200"]
        self._job: Mapping[str, Any] = paths[f"{_PATH}/runs/{{run_id}}/jobs"]["get"]["x-examples"]["200"]["jobs"][0]
        self._pending: Any = paths[f"{_PATH}/runs/{{run_id}}/pending_deployments"]["get"]["x-examples"]["200"]
        self.runs: dict[str, Run] = {}
        self.calls: list[tuple[str, float]] = []
        self.refused: Counter[str] = Counter()
        self.limited = True
        self._points: deque[tuple[float, int]] = deque()
        self._hour = (time.time(), 0)  # since when, and how many calls

    async def reply(self, method: str, target: str, body: bytes) -> tuple[int, Mapping[str, str], Any]:
        """HTTP status, headers and JSON."""
        parts = urlsplit(target)
        if parts.path.startswith("/bench/"):
            return 200, {}, self._report() if method == "GET" else self._tell(json.loads(body))
        *_, last = path = parts.path.strip("/").split("/")
        listed = last == "runs"
        kind = "list" if listed else {"jobs": "jobs", "pending_deployments": "pending"}.get(last, "run")
        limits = self._limits(kind, 1 if method == "GET" else 5)
        if "status" in limits:
            return 403, limits, {"message": "API rate limit exceeded"}
        self.calls.append((kind, time.monotonic()))
        await asyncio.sleep(_LATENCY.get(kind, _USUALLY) if self.limited else 0)
        if method == "POST":
            return 200, limits, {"workflow_run_id": 1, "run_url": "", "html_url": ""}
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if listed:
            headers, found = self._page(query, target)
            return 200, {**limits, **headers}, found
        name = path[5]
        if name not in self.runs:
            return 404, limits, {"message": "Not Found"}
        return 200, limits, self._shown(name, kind)

    def _shown(self, name: str, kind: str) -> Any:
        run = self.runs[name]
        run.looked = run.told = time.monotonic()
        if kind == "jobs":
            job = {**self._job, "status": run.status, "conclusion": run.conclusion}
            return {"total_count": 2, "jobs": [{**self._job, "name": "test"}, job]}
        return self._pending if kind == "pending" else self._as_json(name)

    def _as_json(self, name: str) -> Mapping[str, Any]:
        run = self.runs[name]
        return {**self._run, "id": int(name), "status": run.status, "conclusion": run.conclusion}

    def _page(self, query: Mapping[str, str], target: str) -> tuple[Mapping[str, str], Any]:
        """A page of the runs of a status, the youngest first: of 1,000 at most."""
        names = [name for name, run in self.runs.items() if run.status == query.get("status", run.status)][::-1]
        page, size = int(query.get("page", 1)), int(query["per_page"])
        shown = names[(page - 1) * size : page * size]
        for name in shown:
            self.runs[name].told = time.monotonic()
        found = {"total_count": len(names), "workflow_runs": [self._as_json(name) for name in shown]}
        if page * size >= min(len(names), 1000):
            return {}, found
        following = f"{target.partition('&page=')[0]}&page={page + 1}"
        return {"link": f'<http://{self.host}{following}>; rel="next"'}, found

    host = ""

    def _limits(self, kind: str, points: int) -> dict[str, str]:
        """The headers about limits; with `status` if the call is refused."""
        now, (since, used) = time.time(), self._hour
        since, used = (now, 0) if now - since >= 3600 else (since, used)
        while self._points and now - self._points[0][0] >= 60:
            self._points.popleft()
        found = {"x-ratelimit-limit": str(AN_HOUR), "x-ratelimit-reset": str(int(since + 3600))}
        if self.limited and used >= AN_HOUR:
            self.refused["primary"] += 1
            return {**found, "x-ratelimit-remaining": "0", "status": kind}
        if self.limited and sum(each for _, each in self._points) + points > A_MINUTE:
            self.refused["secondary"] += 1
            return {**found, "x-ratelimit-remaining": str(AN_HOUR - used), "retry-after": "60", "status": kind}
        self._points.append((now, points))
        self._hour = (since, used + 1)
        return {**found, "x-ratelimit-remaining": str(AN_HOUR - used - 1)}

    def _tell(self, orders: Mapping[str, Any]) -> Any:
        for number in range(orders.get("seed", 0)):
            self.runs[str(number + 1)] = Run("in_progress" if number % 2 else "queued")
        for name in orders.get("end", ()):
            self.runs[name].change("completed", "success")
        for name in orders.get("ask", ()):
            self.runs[name].change("waiting")
        if orders.get("forget"):
            self.calls.clear()
        self.limited = orders.get("limited", self.limited)
        return list(self.runs)

    def _report(self) -> Any:
        now = time.monotonic()
        running = [run for run in self.runs.values() if run.status != "completed"]
        return {
            "calls": self.calls,
            "refused": self.refused,
            "looked": [now - run.looked for run in running],
            "told": [now - run.told for run in running],
        }


async def serve(port: int) -> None:
    """Serve for ever."""
    stub = Stub()
    stub.host = f"127.0.0.1:{port}"

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, target, _ = head.split(" ", 2)
                lines = head.lower().split("\r\n")
                length = next((line[15:] for line in lines if line.startswith("content-length:")), "0")
                status, headers, found = await stub.reply(method, target, await reader.readexactly(int(length)))
                body = json.dumps(found).encode()
                told = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                fixed = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
                writer.write(f"HTTP/1.1 {status} {_REASONS[status]}\r\n{fixed}{told}\r\n".encode() + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    """Serve on core 1."""
    pin(1)
    asyncio.run(serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
