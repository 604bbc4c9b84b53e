"""@zereight/mcp-gitlab (npm): pipelines of GitLab, with a stand-in for GitLab's API.

`create_pipeline` starts and `cancel_pipeline` cancels, both with prose for a reply; `get_pipeline` looks, with JSON in
text. Manual jobs are questions: `list_pipeline_jobs` and `play_pipeline_job`. No list shows the name or the variables
of a pipeline, so its start cannot be found by a key.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adapters.mcp.tests.upstreams.upstream import StandIn, Upstream, documented_engine, npm_command
from tests.support.served import serving

CONFIG: Final = documented_engine("gitlab")
TOKEN: Final = "glpat-s3cret"
PROJECT: Final = "group/shop"
NOW: Final = "2026-11-25T08:00:00.000Z"


@dataclass(kw_only=True)
class Pipeline:
    """A pipeline, and its manual jobs by id."""

    id: int
    order: Mapping[str, Any]
    status: str = "created"
    manual: dict[int, str] = field(default_factory=dict[int, str])


class GitLab(StandIn):
    """The part of GitLab's API that pipelines need; a pipeline runs until it is told to end."""

    def __init__(self) -> None:
        super().__init__({"authorization": f"Bearer {TOKEN}"})
        self.pipelines: dict[int, Pipeline] = {}

    def server(self) -> Upstream:
        """The MCP server in front of it."""
        env = {
            "GITLAB_API_URL": f"{self.url}/api/v4",
            "GITLAB_DISABLE_VERSION_CHECK": "true",
            "GITLAB_PERSONAL_ACCESS_TOKEN": TOKEN,
            "GITLAB_TOOLSETS": "pipelines",
        }
        return Upstream(command=npm_command("@zereight/mcp-gitlab/build/index.js"), env=env)

    @property
    def starts(self) -> int:
        """How many pipelines were started."""
        return len(self.pipelines)

    def finish(self, pipeline: int, status: str = "success") -> None:
        """Let a pipeline end with this status."""
        self.pipelines[pipeline].status = status

    def ask(self, pipeline: int, job: str) -> int:
        """Let a pipeline wait for a manual job; returns the id of the job."""
        found = self.pipelines[pipeline]
        found.status = "manual"
        found.manual[1000 + pipeline] = job
        return 1000 + pipeline

    def app(self) -> Starlette:
        """The API."""
        project = "/api/v4/projects/{project:path}"
        pipeline = f"{project}/pipelines/{{pipeline:int}}"
        return Starlette(
            routes=[
                Route(f"{pipeline}/jobs", self.endpoint(self.jobs)),
                Route(f"{pipeline}/cancel", self.endpoint(self.cancel), methods=["POST"]),
                Route(pipeline, self.endpoint(self.describe)),
                Route(f"{project}/pipelines", self.endpoint(self.listed)),
                Route(f"{project}/pipeline", self.endpoint(self.start), methods=["POST"]),
                Route(f"{project}/jobs/{{job:int}}/play", self.endpoint(self.play), methods=["POST"]),
            ]
        )

    async def start(self, request: Request) -> Response:
        """Start a pipeline."""
        order = await request.json()
        if order["ref"] != "main":
            return JSONResponse({"message": {"base": ["Reference not found"]}}, status_code=400)
        pipeline = Pipeline(id=7 + self.starts, order=order)
        self.pipelines[pipeline.id] = pipeline
        return JSONResponse(self._told(pipeline), status_code=201)

    async def describe(self, request: Request) -> Response:
        """Tell about a pipeline."""
        pipeline = self.pipelines.get(request.path_params["pipeline"])
        return _not_found() if pipeline is None else JSONResponse(self._told(pipeline))

    async def listed(self, _: Request) -> Response:
        """Tell about all pipelines, the youngest first."""
        return JSONResponse([self._told(each) for each in reversed(self.pipelines.values())])

    async def jobs(self, request: Request) -> Response:
        """Tell about the manual jobs of a pipeline."""
        pipeline = self.pipelines[request.path_params["pipeline"]]
        return JSONResponse([self._told_job(pipeline, job) for job in pipeline.manual])

    async def play(self, request: Request) -> Response:
        """Run a manual job, once."""
        job = request.path_params["job"]
        pipeline = next((each for each in self.pipelines.values() if job in each.manual), None)
        if pipeline is None:
            return JSONResponse({"message": "400 Bad request - Unplayable Job"}, status_code=400)
        pipeline.status = "running"
        played = {**self._told_job(pipeline, job), "status": "pending"}
        del pipeline.manual[job]
        return JSONResponse(played)

    async def cancel(self, request: Request) -> Response:
        """Cancel a pipeline that runs; one that has ended stays as it is."""
        pipeline = self.pipelines[request.path_params["pipeline"]]
        if pipeline.status in {"created", "running", "manual"}:
            pipeline.status = "canceled"
        return JSONResponse(self._told(pipeline))

    def _told(self, pipeline: Pipeline) -> Mapping[str, Any]:
        told: dict[str, Any] = {"id": pipeline.id, "iid": 1, "project_id": 3, "sha": "a91957a8", "ref": "main"}
        named = {"name": "Release", "status": pipeline.status, "source": "api", "created_at": NOW, "updated_at": NOW}
        return {**told, **named, "web_url": f"{self.url}/{PROJECT}/-/pipelines/{pipeline.id}", "yaml_errors": None}

    def _told_job(self, pipeline: Pipeline, job: int) -> Mapping[str, Any]:
        told = {"id": job, "name": pipeline.manual[job], "stage": "deploy", "status": "manual", "ref": "main"}
        within = {"id": pipeline.id, "project_id": 3, "status": pipeline.status, "ref": "main", "sha": "a91957a8"}
        url = f"{self.url}/{PROJECT}/-/jobs/{job}"
        return {**told, "tag": False, "created_at": NOW, "web_url": url, "pipeline": within, "allow_failure": False}


def _not_found() -> Response:
    return JSONResponse({"message": "404 Not found"}, status_code=404)


@asynccontextmanager
async def gitlab() -> AsyncGenerator[GitLab]:
    """GitLab's API, listening."""
    api = GitLab()
    async with serving(api.app()) as url:
        api.url = url.removesuffix("/mcp")
        yield api
