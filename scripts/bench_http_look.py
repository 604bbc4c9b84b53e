"""CPU of a look at GitHub Actions by `adapter: http`, against the same requests of a bare httpx client; prints JSON.

`python -m scripts.bench_http_look PORT`; PORT is that of the stub, which answers both. They take turns in one process.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import httpx2
from mcp_workflows_http import HttpAdapter

from mcp_workflows.adapter import Ref
from scripts.bench_http_load import WORKFLOW, Control, handle_of, settings
from scripts.bench_rounds import pin

ROUNDS: Final = 15
LOOKS: Final = 100  # of each kind in a round
_PATHS: Final = (
    "/repos/acme/shop/actions/runs/2",
    "/repos/acme/shop/actions/runs/2/jobs?filter=latest&per_page=100",
)


async def _cpu(call: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds of CPU of one call."""
    began = time.process_time()
    for _ in range(LOOKS):
        await call()
    return (time.process_time() - began) * 1000 / LOOKS


async def measured(control: Control) -> Mapping[str, Any]:
    """Compare looks at a run with the bare requests."""
    control.tell(seed=2, limited=False)
    async with HttpAdapter(settings(control.url, rate={"calls": 1e9})) as adapter, httpx2.AsyncClient() as client:
        ref = Ref(workflow=WORKFLOW, handle=handle_of("2"))

        async def look() -> None:
            await adapter.describe(ref)

        async def bare() -> None:
            for path in _PATHS:
                (await client.get(control.url + path, headers={"authorization": "Bearer t"})).json()

        await _cpu(look)
        await _cpu(bare)
        rounds = [(await _cpu(look), await _cpu(bare)) for _ in range(ROUNDS)]
    ratios = sorted(ours / theirs for ours, theirs in rounds)
    return {
        "look_ms": statistics.median(ours for ours, _ in rounds),
        "bare_ms": statistics.median(theirs for _, theirs in rounds),
        "ratio": statistics.median(ratios),
        "ratio_interval": [ratios[1], ratios[-2]],
    }


def main() -> None:
    """Measure, on core 0."""
    pin(0)
    print(json.dumps(asyncio.run(measured(Control(int(sys.argv[1]))))))


if __name__ == "__main__":
    main()
