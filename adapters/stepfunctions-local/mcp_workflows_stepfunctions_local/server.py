"""The server: moto's, with our additions."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from moto.core.config import default_user_config
from moto.core.exceptions import JsonRESTError
from moto.server import ThreadedMotoServer

from mcp_workflows_stepfunctions_local import (
    api,
    corrections,
    distributed_map,
    jsonata,
    language,
    nested_executions,
    patches,
    tokens,
)
from mcp_workflows_stepfunctions_local.release import LocalEngineError
from mcp_workflows_stepfunctions_local.store import STORES

REGION: Final = "us-east-1"
_ACCOUNT: Final = "123456789012"  # the account that moto derives from any credentials
_ROLE: Final = f"arn:aws:iam::{_ACCOUNT}:role/local"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_POSITION: Final = re.compile(r"line (\d+):(\d+), (.*?)(?:'\))?$", re.DOTALL)  # columns count from 0
_DEFINITION: Final = re.compile(r" in definition '.*", re.DOTALL)  # moto repeats all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngine:
    """A local engine that runs in threads of this process; all its state ends with the process."""

    host: str
    port: int
    server: Any

    @property
    def url(self) -> str:
        """The URL for `endpoint_url`."""
        return f"http://{self.host}:{self.port}"

    def stop(self) -> None:
        """Stop accepting calls. Executions run until the process ends."""
        self.server.stop()


def start(port: int, host: str = "127.0.0.1", *, deploy: Sequence[Path] = (), region: str = REGION) -> LocalEngine:
    """Start the local engine, and return when it answers. Call it once per process, as moto has many globals.

    Raises:
        LocalEngineError: the port is taken, a file cannot be deployed, or the installed moto is not supported.
    """
    check_port(host, port)
    patches.check()
    for part in (corrections, jsonata, language, distributed_map, tokens, nested_executions, api):
        part.install()
    settings: Any = default_user_config
    settings["stepfunctions"] = {"execute_state_machine": True}
    settings["lambda"] = {"use_docker": False}
    os.environ["MOTO_PORT"] = str(port)  # the port that Task states call; moto reads it nowhere else
    for chatty in ("werkzeug", "moto.stepfunctions.parser.asl"):  # a line per request, a page per failed state
        logging.getLogger(chatty).setLevel(logging.CRITICAL)
    for file in deploy:
        deploy_file(file, region)
    server = ThreadedMotoServer(ip_address=host, port=port, verbose=False)
    server.start()
    return LocalEngine(host=host, port=port, server=server)


def check_port(host: str, port: int) -> None:
    """Check that we can listen on the port; moto's server waits forever if it cannot.

    Raises:
        LocalEngineError: another process listens there, or the address does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:  # OverflowError: not a port number
            raise LocalEngineError(
                f"cannot listen on {host}:{port} ({getattr(error, 'strerror', None) or error}): "
                "choose another with --port or --host"
            ) from error


def deploy_file(file: Path, region: str) -> None:
    """Create the state machine that is defined in a file, under the file's name up to its first dot.

    Raises:
        LocalEngineError: the file cannot be read, or its definition is refused.
    """
    name = file.name.partition(".")[0]
    if not _NAME.fullmatch(name):
        raise LocalEngineError(
            f"{file}: a state machine cannot be named {name!r}: 1 to 80 letters, digits, underscores and hyphens"
        )
    try:
        definition = file.read_text(encoding="utf-8")
        json.loads(definition)
        STORES[_ACCOUNT][region].create_state_machine(name, definition, _ROLE)
    except OSError as error:
        raise LocalEngineError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LocalEngineError(f"{file}: it is no text in UTF-8") from error
    except json.JSONDecodeError as error:
        raise LocalEngineError(f"{file}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    except JsonRESTError as error:
        raise LocalEngineError(f"{file}{_shorten(error.message)}") from error


def _shorten(refusal: str) -> str:
    """Return moto's message on a definition, to follow the file name: `:line:column: ...` if moto gives the place."""
    found = _POSITION.search(refusal)
    return f":{found[1]}:{int(found[2]) + 1}: {found[3]}" if found else f": {_DEFINITION.sub('', refusal)}"
