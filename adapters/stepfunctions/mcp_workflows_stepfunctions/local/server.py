"""The server: moto's, with our additions put in."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from moto.core.config import default_user_config
from moto.core.exceptions import JsonRESTError
from moto.server import ThreadedMotoServer

from mcp_workflows_stepfunctions.local import clients, codes, insides, jsonata, nesting, parsing, store, tries
from mcp_workflows_stepfunctions.local.port import refuse_taken
from mcp_workflows_stepfunctions.local.release import LocalEngineError

REGION: Final = "us-east-1"
_ACCOUNT: Final = "123456789012"  # the one that moto makes of any credentials
_ROLE: Final = f"arn:aws:iam::{_ACCOUNT}:role/local"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_AT: Final = re.compile(r"line (\d+):(\d+), (.*?)(?:'\))?$", re.DOTALL)  # columns count from 0
_WHOLE: Final = re.compile(r" in definition '.*", re.DOTALL)  # moto repeats all of it


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


def start(port: int, host: str = "127.0.0.1", *, deploy: Sequence[Path] = (), region: str = REGION) -> LocalEngine:
    """Start the local engine; it answers when this returns. Once per process, because moto is full of globals.

    Raises:
        LocalEngineError: the port is taken, a file cannot be deployed, or the moto that is installed is not the one
            we know.
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
    for file in deploy:
        deploy_file(file, region)
    server = ThreadedMotoServer(ip_address=host, port=port, verbose=False)
    server.start()
    return LocalEngine(host=host, port=port, server=server)


def deploy_file(file: Path, region: str) -> None:
    """Create the state machine that is defined in a file, under the file's name up to its first dot.

    Raises:
        LocalEngineError: the file cannot be read, or its definition is refused; with file:line for what is not JSON.
    """
    name = file.name.partition(".")[0]
    if not _NAME.fullmatch(name):
        raise LocalEngineError(
            f"{file}: a state machine cannot be named {name!r}: 1 to 80 letters, digits, underscores and hyphens"
        )
    try:
        definition = file.read_text(encoding="utf-8")
        json.loads(definition)
        store.STORES[_ACCOUNT][region].create_state_machine(name, definition, _ROLE)
    except OSError as error:
        raise LocalEngineError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LocalEngineError(f"{file}: it is no text in UTF-8") from error
    except json.JSONDecodeError as error:
        raise LocalEngineError(f"{file}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    except JsonRESTError as error:
        raise LocalEngineError(f"{file}{_said(error.message)}") from error


def _said(refusal: str) -> str:
    """What moto says of a definition, behind the name of its file: `:line:column: ...` where it knows that."""
    found = _AT.search(refusal)
    return f":{found[1]}:{int(found[2]) + 1}: {found[3]}" if found else f": {_WHOLE.sub('', refusal)}"
