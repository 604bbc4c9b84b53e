"""The port the server wants, looked at before: moto's waits for ever when it cannot have it."""

from __future__ import annotations

import socket

from mcp_workflows_stepfunctions.local.release import LocalEngineError


def refuse_taken(host: str, port: int) -> None:
    """Check that we can listen there.

    Raises:
        LocalEngineError: somebody else does, or the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:  # the latter of a port that is no port
            raise LocalEngineError(
                f"cannot listen on {host}:{port} ({getattr(error, 'strerror', None) or error}): "
                "choose another with --port or --host"
            ) from error
