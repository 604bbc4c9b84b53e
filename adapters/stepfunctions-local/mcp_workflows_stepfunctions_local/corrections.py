"""Small corrections of moto: error codes, concurrent parsing of definitions, and clients of Task states."""

from __future__ import annotations

import threading
from typing import Any, Final

import boto3
from botocore.config import Config
from moto.core.exceptions import AWSError
from moto.stepfunctions.parser import api
from moto.stepfunctions.parser.asl.parse.preprocessor import Preprocessor
from moto.stepfunctions.parser.asl.utils import boto_client

from mcp_workflows_stepfunctions_local.patches import replace, require

_BOTO3: Any = boto3  # it has no types
_LANGUAGES: Final = "_query_language_per_scope"


class ClientPool:
    """One boto3 client per service and Region for Task states; clients are created one at a time.

    It replaces the module boto3 where Task states create their clients. Moto creates a client per task, in the thread
    of the task: that takes tens of milliseconds, and boto3's session is not thread-safe.
    """

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def client(self, *, service_name: str, region_name: str, config: Any, **more: Any) -> Any:
        """Return the client of this service and Region; all other parameters are the same in each call.

        Unlike moto's client, it adds no prefix to host names (`sync-`): there is no host sync-localhost.
        """
        with self._lock:
            if (service_name, region_name) not in self._clients:
                local_config = config.merge(Config(inject_host_prefix=False))
                self._clients[service_name, region_name] = _BOTO3.client(
                    service_name, region_name=region_name, config=local_config, **more
                )
            return self._clients[service_name, region_name]


def install() -> None:
    """Apply all corrections to moto."""
    _correct_error_codes()
    require(Preprocessor, _LANGUAGES)
    replace(Preprocessor, "__init__", _begin_parse)
    require(boto_client, "boto_client_for")
    replace(boto_client, "boto3", ClientPool())


def _correct_error_codes() -> None:
    """Give each error of moto's executor its code, which InvalidDefinition and others lack for clients."""
    require(api, "InvalidDefinition", "ResourceNotFound")
    require(AWSError, "TYPE", "STATUS")
    for error in vars(api).values():
        if isinstance(error, type) and issubclass(error, AWSError):
            error_class: Any = error
            error_class.TYPE, error_class.STATUS = (
                getattr(error_class, "code", None),
                getattr(error_class, "status_code", 400),
            )


def _begin_parse(preprocessor: Any) -> None:
    """Give each parse its own list of query languages.

    Each execution parses the definition of its machine at its start. Moto records the query language (JSONPath or
    JSONata) in one list for all parses. So executions that start together read each other's entries, and a refused
    definition breaks all later parses.
    """
    setattr(preprocessor, _LANGUAGES, [])
