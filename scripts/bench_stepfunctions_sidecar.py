"""The sidecar as users have it, in front of an engine that speaks Step Functions' API; on core 0."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.bench_rounds import on_core_0
from scripts.bench_stepfunctions_account import ACCOUNT, BRIEF, FAILING, REGION
from tests.support.local_engines import BIN

SHARE = 0.5  # of AWS's default quotas
_SECONDS = {"type": "object", "properties": {"seconds": {"type": "number"}}, "required": ["seconds"]}


def sidecar(folder: Path, name: str, *more: str, endpoint: str, queue_url: str | None = None) -> Sequence[str]:
    """What starts it, its store in this folder; on stdio, unless `more` says where else."""
    config = folder / f"{name}.yaml"
    config.write_text(json.dumps(_config(f"sqlite:///{folder}/{name}.db", endpoint, queue_url)))
    return on_core_0(str(BIN / "mcp-workflows"), "serve", str(config), *more)


def _config(store: str, endpoint: str, queue_url: str | None) -> Mapping[str, object]:
    """JSON is YAML."""
    engine: Mapping[str, object] = {
        "adapter": "stepfunctions",
        "region": REGION,
        "account": ACCOUNT,
        "endpoint_url": endpoint,
        "quota": {"share": SHARE},
        **({"events": {"queue_url": queue_url}} if queue_url else {}),
    }
    tools = {name: {"engine": "aws", "workflow": name, "input": _SECONDS} for name in (BRIEF, FAILING)}
    return {"server": {"name": "bench"}, "store": store, "engines": {"aws": engine}, "tools": tools}
