"""`python -m mcp_workflows_google_local`: a Workflows engine on this machine, until it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mcp_workflows_google_local.port import LOOPBACK
from mcp_workflows_google_local.project import Home
from mcp_workflows_google_local.refusals import LocalEngineError
from mcp_workflows_google_local.server import Settings, serving

PORT: Final = 8790
PROJECT: Final = "demo"
NUMBER: Final = "123456789012"
LOCATION: Final = "us-central1"


def main() -> None:
    """Start the engine, print its address, and wait for SIGTERM or Ctrl-C."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    logging.getLogger("mcp_workflows_google_local").setLevel(logging.INFO)
    try:
        asyncio.run(_serve(read_options(sys.argv[1:])))
    except LocalEngineError as error:
        sys.exit(str(error))
    logging.shutdown()
    os._exit(0)  # everything is closed; otherwise the exit would wait for the threads of gRPC


async def _serve(settings: Settings) -> None:
    stopped = asyncio.Event()
    for wish in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(wish, stopped.set)
    async with serving(settings):
        home = settings.home
        sys.stdout.write(f"Workflows is ready on {settings.address} (project {home.project}, {home.location})\n")
        sys.stdout.flush()
        await stopped.wait()


def read_options(words: Sequence[str]) -> Settings:
    """Return the settings of the command line; a mistake in it ends the process with a message."""
    parser = _parser()
    options = parser.parse_args(words)
    if (options.env or options.label) and not options.deploy:
        parser.error("--env and --label are of the workflows that --deploy names: name some")
    home = Home(project=options.project, number=options.project_number, location=options.location)
    return Settings(
        host=options.host,
        port=options.port,
        home=home,
        database=options.db,
        deploy=options.deploy,
        env=dict(options.env),
        labels=dict(options.label),
        most=options.concurrency,
        reached=options.url,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mcp_workflows_google_local",
        description="An engine for workflows of Google Cloud Workflows, for development. No credentials are checked: "
        "listen on the loopback only.",
    )
    parser.add_argument("--host", default=LOOPBACK, help=f"address to listen on ({LOOPBACK})")
    parser.add_argument("--port", default=PORT, type=int, help=f"port to listen on, gRPC and HTTP ({PORT})")
    parser.add_argument("--db", type=Path, help="SQLite file to keep everything in; without it nothing is kept")
    parser.add_argument("--project", default=PROJECT, help=f"id of the project to play ({PROJECT})")
    parser.add_argument("--project-number", default=NUMBER, help=f"its number, which names carry ({NUMBER})")
    parser.add_argument("--location", default=LOCATION, help=f"location to play ({LOCATION})")
    parser.add_argument(
        "--deploy", type=Path, nargs="+", action="extend", default=[], metavar="FILE", help="workflows to deploy"
    )
    for option, what in (("--env", "environment variables"), ("--label", "labels")):
        parser.add_argument(
            option, type=_pair, nargs="+", action="extend", default=[], metavar="NAME=VALUE", help=f"{what} of these"
        )
    parser.add_argument("--concurrency", type=_positive, help="executions that run at once; the others are QUEUED")
    parser.add_argument("--url", type=_url, help="http://HOST:PORT that others reach it by, if it is another")
    return parser


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://[^/?#@\s]+/?", text):
        raise argparse.ArgumentTypeError(f"write http://HOST:PORT, not {text!r}")
    return text.rstrip("/")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"write NAME=VALUE, not {text!r}")
    return name, value


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"write a number from 1, not {text!r}")
    return int(text)


if __name__ == "__main__":
    main()
