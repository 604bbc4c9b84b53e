"""The server: moto's, with our additions put in."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

from moto.core.config import default_user_config
from moto.server import ThreadedMotoServer

from mcp_workflows_stepfunctions.local import clients, codes, insides, jsonata, nesting, parsing, store, tries
from mcp_workflows_stepfunctions.local.port import refuse_taken


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngine:
    """A local engine that runs in threads of this process; everything is gone when the process ends."""

    host: str
    port: int
    server: Any

    @property
    def url(self) -> str:
        """What goes into `endpoint_url`."""
        return f"http://{self.host}:{self.port}"

    def stop(self) -> None:
        """Take no more calls; executions run on until the process ends."""
        self.server.stop()


def start(port: int, host: str = "127.0.0.1") -> LocalEngine:
    """Start the local engine; it answers when this returns. Once per process, because moto is full of globals.

    Raises:
        LocalEngineError: the port is taken, or the moto that is installed is not the one we know.
    """
    refuse_taken(host, port)
    insides.check()
    for part in (codes, parsing, jsonata, tries, nesting, clients, store):
        part.install()
    settings: Any = default_user_config
    settings["stepfunctions"] = {"execute_state_machine": True}
    settings["lambda"] = {"use_docker": False}
    os.environ["MOTO_PORT"] = str(port)  # where Task states call; moto reads it nowhere else
    for chatty in ("werkzeug", "moto.stepfunctions.parser.asl"):  # a line per request, a page per state that fails
        logging.getLogger(chatty).setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address=host, port=port, verbose=False)
    server.start()
    return LocalEngine(host=host, port=port, server=server)
