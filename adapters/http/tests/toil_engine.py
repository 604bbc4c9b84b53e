"""A real Toil: its server of the GA4GH Workflow Execution Service, in an environment of its own."""

from __future__ import annotations

import http.client
import os
from collections.abc import Sequence
from pathlib import Path

from tests.support.engine_process import EngineProcess
from tests.support.environments import TOIL, python_of

_TOOL = """
cwlVersion: v1.2
class: CommandLineTool
baseCommand: [sh, -c]
arguments: ["{script}"]
inputs: {{text: {{type: string?}}}}
outputs: {{said: stdout}}
stdout: said.txt
"""
_SCRIPTS = {"echo": "echo hi", "decline": "echo the card was declined >&2; exit 1", "forever": "sleep 600"}


class Toil(EngineProcess):
    """One server."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        super().__init__(folder, port, "toil.log")
        self._python = python_of("toil", TOIL)
        for name, script in _SCRIPTS.items():
            (folder / f"{name}.cwl").write_text(_TOOL.format(script=script))

    def workflow(self, name: str) -> str:
        """The URL of one."""
        return (self.folder / f"{name}.cwl").as_uri()

    def argv(self) -> Sequence[str]:
        """In the foreground."""
        path = f"PATH={self._python.parent}:{os.environ['PATH']}"  # it runs toil-cwl-runner
        more = ["--host", "127.0.0.1", "--port", str(self.port), "--work_dir", str(self.folder / "runs")]
        return ["/usr/bin/env", path, str(self._python.with_name("toil")), "server", "--bypass_celery", *more]

    def answers(self) -> bool:
        """Whether it takes requests now."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/ga4gh/wes/v1/service-info")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"
