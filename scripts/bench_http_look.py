"""CPU of a look at GitHub Actions by `adapter: http`, against the same requests of a bare httpx client; prints JSON.

`python -m scripts.bench_http`. A stub in a process of its own answers both; they take turns in one process.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import httpx2
from mcp_workflows_http import HttpAdapter, HttpSettings

from mcp_workflows.adapter import Ref, Start
from scripts.processes import free_port

ROUNDS: Final = 15
LOOKS: Final = 100  # of each kind in a round
RUN: Final[Mapping[str, Any]] = {
    "id": 42,
    "status": "in_progress",
    "conclusion": None,
    "html_url": "https://github.com/acme/shop/actions/runs/42",
    "run_attempt": 1,
    **{f"field_{number}": "value " * 10 for number in range(60)},  # as long as GitHub's
}
STEPS: Final = [{"name": f"step {number}", "status": "completed", "conclusion": "success"} for number in range(10)]
JOBS: Final = [
    {"id": number, "name": f"job {number}", "status": "completed", "conclusion": "success", "steps": STEPS}
    for number in range(4)
] + [{"id": 5, "name": "job 5", "status": "in_progress", "conclusion": None, "steps": STEPS}]
_PATHS: Final = (
    "/repos/acme/shop/actions/runs/42",
    "/repos/acme/shop/actions/runs/42/jobs?filter=latest&per_page=100",
)


async def _stub(port: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (line[15:] for line in head.lower().split("\r\n") if line.startswith("content-length:")), "0"
                )
                await reader.readexactly(int(length))
                found: Any = {"jobs": JOBS} if "/jobs" in head else RUN
                body = json.dumps({"workflow_run_id": 42} if "dispatches" in head else found).encode()
                reply = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(reply.encode() + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()


async def _cpu(call: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds of CPU of one call."""
    began = time.process_time()
    for _ in range(LOOKS):
        await call()
    return (time.process_time() - began) * 1000 / LOOKS


async def _measured(url: str) -> Mapping[str, Any]:
    written = {"preset": "github-actions", "url": url, "vars": {"owner": "acme", "repo": "shop"}}
    settings = HttpSettings.model_validate({**written, "auth": {"bearer": "t"}, "rate": {"calls": 1e9}})
    async with HttpAdapter(settings) as adapter, httpx2.AsyncClient() as client:
        order = Start(workflow="deploy.yml", arguments={}, key="k", created=datetime.now(UTC))
        ref = Ref(workflow="deploy.yml", handle=await adapter.start(order))

        async def look() -> None:
            await adapter.describe(ref)

        async def bare() -> None:
            for path in _PATHS:
                (await client.get(url + path, headers={"authorization": "Bearer t"})).json()

        await _cpu(look)
        await _cpu(bare)
        rounds = [(await _cpu(look), await _cpu(bare)) for _ in range(ROUNDS)]
    ratios = sorted(ours / theirs for ours, theirs in rounds)
    return {
        "look_ms": statistics.median(ours for ours, _ in rounds),
        "bare_ms": statistics.median(theirs for _, theirs in rounds),
        "ratio": statistics.median(ratios),
        "ratio_interval": [ratios[1], ratios[-2]],
        "load": os.getloadavg(),
    }


def main() -> None:
    """Start the stub, measure, stop it."""
    if sys.argv[1:]:
        asyncio.run(_stub(int(sys.argv[1])))
    port = free_port()
    with subprocess.Popen([sys.executable, "-m", "scripts.bench_http", str(port)]) as stub:
        try:
            time.sleep(2)
            print(json.dumps(asyncio.run(_measured(f"http://127.0.0.1:{port}")), indent=2))
        finally:
            stub.kill()


if __name__ == "__main__":
    main()
