"""astro-airflow-mcp (PyPI): DAG runs of Airflow 3, with a stand-in for Airflow's API, which has one DAG, `etl`.

The replies are JSON in text, and so are errors: only their field `error` tells. `trigger_dag` starts, `get_dag_run`
looks, and no tool cancels. The key goes along in `conf`, which `list_dag_runs` shows.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adapters.mcp.tests.upstreams.upstream import StandIn, Upstream, documented_engine
from tests.support.environments import AIRFLOW_MCP, python_of
from tests.support.served import serving

CONFIG: Final = documented_engine("airflow")
DAG: Final = "etl"
TOKEN: Final = "s3cret-of-airflow"
NOW: Final = "2026-11-25T08:00:00Z"


class Airflow(StandIn):
    """The part of Airflow's API that runs of a DAG need; a run goes on until it is told to end."""

    def __init__(self, folder: Path) -> None:
        super().__init__({"authorization": f"Bearer {TOKEN}"})
        self.is_paused = True
        self.runs: dict[str, dict[str, Any]] = {}
        self._folder = folder

    def server(self) -> Upstream:
        """The MCP server in front of it."""
        env = {"AIRFLOW_API_URL": self.url, "AIRFLOW_AUTH_TOKEN": TOKEN, "AF_TELEMETRY_DISABLED": "1"}
        command = str(python_of("airflow-mcp", AIRFLOW_MCP).with_name("astro-airflow-mcp"))
        return Upstream(command=[command], env={**env, "HOME": str(self._folder)})  # where it keeps settings

    @property
    def starts(self) -> int:
        """How many runs were started."""
        return len(self.runs)

    def finish(self, run: str) -> None:
        """Let a run succeed."""
        self.runs[run].update(state="success", end_date=NOW, duration=12.5)

    def app(self) -> Starlette:
        """The API."""
        dag = f"/api/v2/dags/{DAG}"
        return Starlette(
            routes=[
                Route("/api/v2/version", self.endpoint(self.version)),
                Route(dag, self.endpoint(self.dag), methods=["GET"]),
                Route(dag, self.endpoint(self.unpause), methods=["PATCH"]),
                Route(f"{dag}/dagRuns", self.endpoint(self.listed), methods=["GET"]),
                Route(f"{dag}/dagRuns", self.endpoint(self.start), methods=["POST"]),
                Route(f"{dag}/dagRuns/{{run}}", self.endpoint(self.describe), methods=["GET"]),
                Route("/{path:path}", self.endpoint(self.nothing)),
            ]
        )

    async def version(self, _: Request) -> Response:
        """Tell its version, which the server asks for once."""
        return JSONResponse({"version": "3.3.2", "git_version": None})

    async def dag(self, _: Request) -> Response:
        """Tell about the DAG."""
        return JSONResponse({"dag_id": DAG, "dag_display_name": DAG, "is_paused": self.is_paused})

    async def unpause(self, request: Request) -> Response:
        """Pause the DAG, or let it run."""
        self.is_paused = (await request.json())["is_paused"]
        return JSONResponse({"dag_id": DAG, "is_paused": self.is_paused})

    async def start(self, request: Request) -> Response:
        """Start a run."""
        conf = (await request.json()).get("conf", {})
        run = f"manual__{NOW}_{self.starts}"
        told = {"dag_run_id": run, "dag_id": DAG, "logical_date": None, "run_after": NOW, "run_type": "manual"}
        times = {"start_date": None, "end_date": None, "duration": None}
        self.runs[run] = {**told, **times, "state": "queued", "conf": conf, "note": None}
        return JSONResponse(self.runs[run])

    async def describe(self, request: Request) -> Response:
        """Tell about a run."""
        run = request.path_params["run"]
        if run in self.runs:
            return JSONResponse(self.runs[run])
        detail = f"The DagRun with dag_id: `{DAG}` and run_id: `{run}` was not found"
        return JSONResponse({"detail": detail}, status_code=404)

    async def listed(self, request: Request) -> Response:
        """Tell about some runs, the youngest first."""
        limit, offset = (int(request.query_params[name]) for name in ("limit", "offset"))
        page = list(self.runs.values())[::-1][offset : offset + limit]
        return JSONResponse({"dag_runs": page, "total_entries": self.starts})

    async def nothing(self, _: Request) -> Response:
        """Answer what is asked of anything else."""
        return JSONResponse({"detail": "Not Found"}, status_code=404)


@asynccontextmanager
async def airflow(folder: Path) -> AsyncGenerator[Airflow]:
    """Airflow's API, listening; the MCP server keeps its settings in `folder`."""
    api = Airflow(folder)
    async with serving(api.app()) as url:
        api.url = url.removesuffix("/mcp")
        yield api
