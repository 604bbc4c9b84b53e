"""One boto3 client per service and Region for Task states, made one at a time.

Moto makes one per task, in whatever thread: that takes tens of milliseconds, and boto3's session is not thread-safe.
"""

from __future__ import annotations

import threading
from typing import Any

import boto3
from botocore.config import Config
from moto.stepfunctions.parser.asl.utils import boto_client

from mcp_workflows_stepfunctions.local.patching import replace, required

_BOTO3: Any = boto3  # it has no types


class Clients:
    """In place of the module boto3 where Task states make their clients."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], Any] = {}
        self._turn = threading.Lock()

    def client(self, *, service_name: str, region_name: str, config: Any, **more: Any) -> Any:
        """The client of this service and Region, all other parameters being the same every time.

        Without the prefix of hosts (`sync-`), which moto leaves on: there is no host sync-localhost.
        """
        with self._turn:
            if (service_name, region_name) not in self._made:
                here = config.merge(Config(inject_host_prefix=False))
                self._made[service_name, region_name] = _BOTO3.client(
                    service_name, region_name=region_name, config=here, **more
                )
            return self._made[service_name, region_name]


def install() -> None:
    """Have Task states use these."""
    required(boto_client, "boto_client_for")
    replace(boto_client, "boto3", Clients())
