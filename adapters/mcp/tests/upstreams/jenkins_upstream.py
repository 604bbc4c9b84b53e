"""mcp-jenkins (PyPI): builds of Jenkins, with a stand-in for Jenkins, which has one pipeline, `release`.

The replies are structured content, wrapped by FastMCP. `build_item` starts and returns an item of the queue. No tool
tells which build became of it, so the key goes along as a parameter, and the poll is at the last build of the job.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from adapters.mcp.tests.upstreams.upstream import StandIn, Upstream, documented_engine
from tests.support.environments import MCP_JENKINS, python_of
from tests.support.served import serving

CONFIG: Final = documented_engine("jenkins")
JOB: Final = "release"
USER: Final = ("mcp", "s3cret-of-jenkins")
PIPELINE: Final = "org.jenkinsci.plugins.workflow.job.WorkflowJob"
RUN: Final = "org.jenkinsci.plugins.workflow.job.WorkflowRun"
BEGUN: Final = 1795595057562  # ms since 1970


@dataclass(kw_only=True)
class Build:
    """A build."""

    number: int
    item: int
    parameters: Mapping[str, str]
    result: str | None = None
    inputs: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    answers: dict[str, Any] = field(default_factory=dict[str, Any])


class Jenkins(StandIn):
    """The part of Jenkins that mcp-jenkins needs; a build runs until it is told to end."""

    def __init__(self, folder: Path) -> None:
        super().__init__({"authorization": f"Basic {b64encode(':'.join(USER).encode()).decode()}"})
        self.builds = {1: Build(number=1, item=0, parameters={}, result="SUCCESS")}  # somebody else's
        self._folder = folder

    def server(self) -> Upstream:
        """The MCP server in front of it."""
        user, password = USER
        env = {"JENKINS_URL": self.url, "JENKINS_USERNAME": user, "JENKINS_PASSWORD": password}
        command = str(python_of("mcp-jenkins", MCP_JENKINS).with_name("mcp-jenkins"))
        return Upstream(command=[command], env={**env, "HOME": str(self._folder)})  # where it keeps its log

    def finish(self, number: int, result: str = "SUCCESS") -> None:
        """Let a build end with this result."""
        self.builds[number].result = result

    def ask(self, number: int, name: str, message: str, inputs: Sequence[Mapping[str, Any]] = ()) -> None:
        """Let a build wait for input; `inputs` as Jenkins defines parameters."""
        self.builds[number].inputs[name] = {"id": name, "message": message, "proceedText": "Proceed", "inputs": inputs}

    def app(self) -> Starlette:
        """The server."""
        build = f"/job/{JOB}/{{number:int}}"
        return Starlette(
            routes=[
                Route("/crumbIssuer/api/json", self.endpoint(self.crumb)),
                Route("/computer/api/json", self.endpoint(self.nodes)),
                Route(f"/job/{JOB}/buildWithParameters", self.endpoint(self.start), methods=["POST"]),
                Route(f"/job/{JOB}/api/json", self.endpoint(self.job)),
                Route(f"{build}/api/json", self.endpoint(self.describe)),
                Route(f"{build}/stop", self.endpoint(self.stop), methods=["POST"]),
                Route(f"{build}/wfapi/pendingInputActions", self.endpoint(self.pending_inputs)),
                Route(f"{build}/input/{{name}}/{{action}}", self.endpoint(self.submit), methods=["POST"]),
                Route(f"{build}/", self.endpoint(self.page)),
            ]
        )

    async def crumb(self, _: Request) -> Response:
        """Issue what a POST must have."""
        return JSONResponse({"crumb": "c0ffee", "crumbRequestField": "Jenkins-Crumb"})

    async def start(self, request: Request) -> Response:
        """Put a build into the queue."""
        async with request.form() as form:
            parameters = {name: str(value) for name, value in form.items()}
        number = max(self.builds) + 1
        self.builds[number] = Build(number=number, item=7 + number, parameters=parameters)
        return Response(status_code=201, headers={"location": f"{self.url}/queue/item/{7 + number}/"})

    async def nodes(self, _: Request) -> Response:
        """Tell what the executors do."""
        running = [build for build in self.builds.values() if build.result is None]
        executors: list[Any] = [{"currentExecutable": self._told(build)} for build in running]
        node = {
            "displayName": "Built-In Node",
            "offline": False,
            "executors": [*executors, {"currentExecutable": None}],
        }
        return JSONResponse({"computer": [node]})

    async def job(self, _: Request) -> Response:
        """Tell about the job."""
        builds = [self._named(number) for number in sorted(self.builds, reverse=True)]
        told = {"_class": PIPELINE, "name": JOB, "fullName": JOB, "url": f"{self.url}/job/{JOB}/", "color": "blue"}
        return JSONResponse({**told, "buildable": True, "builds": builds, "lastBuild": builds[0] if builds else None})

    async def describe(self, request: Request) -> Response:
        """Tell about a build."""
        build = self.builds.get(request.path_params["number"])
        return _not_found() if build is None else JSONResponse(self._told(build))

    async def stop(self, request: Request) -> Response:
        """Stop a build that runs, and show its page."""
        build = self.builds[request.path_params["number"]]
        build.result = build.result or "ABORTED"
        return RedirectResponse(".", status_code=302)

    async def page(self, _: Request) -> Response:
        """Show a build to people."""
        return HTMLResponse("<html><title>release</title></html>")

    async def pending_inputs(self, request: Request) -> Response:
        """Tell what a build waits for."""
        build = self.builds.get(request.path_params["number"])
        return _not_found() if build is None else JSONResponse(list(build.inputs.values()))

    async def submit(self, request: Request) -> Response:
        """Take the answer to an input step."""
        build, name = self.builds[request.path_params["number"]], request.path_params["name"]
        if build.inputs.pop(name, None) is None:
            return _not_found()
        async with request.form() as form:
            build.answers[name] = json.loads(str(form.get("json", "{}")))
        if request.path_params["action"] == "abort":
            build.result = "ABORTED"
        return Response(status_code=200)

    def _told(self, build: Build) -> Mapping[str, Any]:
        told = {"_class": RUN, **self._named(build.number), "queueId": build.item, "timestamp": BEGUN, "duration": 0}
        ended = {"building": build.result is None, "result": build.result}
        return {**told, **ended, "actions": [{}, _parameters(build.parameters)]}

    def _named(self, number: int) -> Mapping[str, Any]:
        return {"number": number, "url": f"{self.url}/job/{JOB}/{number}/"}


def _parameters(parameters: Mapping[str, str]) -> Mapping[str, Any]:
    listed = [{"name": name, "value": value} for name, value in parameters.items()]
    return {"_class": "hudson.model.ParametersAction", "parameters": listed}


def _not_found() -> Response:
    return HTMLResponse("<html><title>404 Not Found</title></html>", status_code=404)


@asynccontextmanager
async def jenkins(folder: Path) -> AsyncGenerator[Jenkins]:
    """Jenkins, listening; the MCP server keeps its log in `folder`."""
    found = Jenkins(folder)
    async with serving(found.app()) as url:
        found.url = url.removesuffix("/mcp")
        yield found
