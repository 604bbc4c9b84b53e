"""The command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
from rich.console import Console

from mcp_workflows.conformance_2025.check import Check, CheckError, Outcome, Role
from mcp_workflows.conformance_2025.fixtures import WHAT, WrongUsageError, official, read_fixture
from mcp_workflows.conformance_2025.report import PAGE, as_json, listed, markdown, show
from mcp_workflows.conformance_2025.run import chosen, failed, run
from mcp_workflows.conformance_2025.site import Settings

PROG = "python -m mcp_workflows.conformance_2025"
WRONG_USAGE = 2  # or nothing to be checked there
STOPPED = 130
WIDTH = 140  # where there is no terminal


def main(argv: Sequence[str] | None = None) -> int:
    """0: it conforms; 1: it does not; 2: wrong usage, or no such server there."""
    try:
        arguments = _parser().parse_args(argv)
        checks = _checks(arguments.only)
        if arguments.list is not None:
            sys.stdout.write((markdown if arguments.list == "markdown" else listed)(checks) + "\n")
            return 0
        return _run(_settings(arguments), checks, arguments)
    except WrongUsageError as problem:
        return _say(str(problem))
    except KeyboardInterrupt:
        _say("stopped; tasks that were under way may go on")
        return STOPPED


def _run(settings: Settings, checks: Sequence[Check], arguments: argparse.Namespace) -> int:
    console = Console(stderr=arguments.json == "-", width=None if sys.stdout.isatty() else WIDTH)
    with console.status(f"{len(checks)} checks") if console.is_terminal else console:
        try:
            outcomes = anyio.run(run, settings, checks)
        except CheckError as problem:
            return _say(f"{settings.url}: {problem}{_hint(str(problem))}")
    show(console, settings, outcomes, strict=arguments.strict)
    if arguments.json:
        _write(arguments.json, settings, outcomes, strict=arguments.strict)
    return int(failed(outcomes, strict=arguments.strict))


def _write(path: str, settings: Settings, outcomes: Sequence[Outcome], *, strict: bool) -> None:
    text = json.dumps(as_json(settings, outcomes, strict=strict), indent=2, ensure_ascii=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise WrongUsageError(f"--json {path}: {error.strerror}") from None


def _hint(problem: str) -> str:
    if "HTTP 401" in problem or "HTTP 403" in problem:
        return "; it wants credentials: --header 'Authorization: Bearer ...'"
    return "; the URL must be that of the MCP endpoint, often ending in /mcp" if "HTTP 404" in problem else ""


def _say(text: str) -> int:
    sys.stderr.write(f"{PROG}: {text}\n")
    return WRONG_USAGE


def _checks(only: Sequence[str]) -> Sequence[Check]:
    try:
        return chosen([name for names in only for name in names.split(",")])
    except KeyError as error:
        raise WrongUsageError(f"--only {error.args[0]!r}: there is no such check or scenario; see --list") from None


def _settings(arguments: argparse.Namespace) -> Settings:
    if arguments.url is None:
        raise WrongUsageError("whose server? give the URL of its MCP endpoint, such as http://127.0.0.1:8931/mcp")
    if not str(arguments.url).startswith(("http://", "https://")):
        raise WrongUsageError(f"{arguments.url!r} is no http:// or https:// URL")
    if min(arguments.timeout, arguments.poll, arguments.seconds, arguments.at_once) <= 0:
        raise WrongUsageError("--timeout, --poll, --seconds and --at-once must be greater than 0")
    return Settings(
        url=arguments.url,
        fixtures={**official(arguments.seconds), **dict(map(read_fixture, arguments.tool))},
        headers=_headers(arguments.header),
        other=_headers(arguments.header_other) if arguments.header_other else None,
        patience=arguments.timeout,
        poll=arguments.poll,
        seconds=arguments.seconds,
        at_once=arguments.at_once,
    )


def _headers(given: Sequence[str]) -> Mapping[str, str]:
    pairs = [text.partition(":") for text in given]
    if not all(colon and name.strip() for name, colon, _ in pairs):
        raise WrongUsageError("--header and --header-other take 'Name: value'")  # never what was typed: it is secret
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _parser() -> argparse.ArgumentParser:
    roles = "\n".join(f"  {role:10} {WHAT[role]}\n{'':13}by default {official(2)[role]}" for role in Role)
    parser = argparse.ArgumentParser(
        prog=PROG,
        description="Checks whether a server's tasks are those of MCP 2025-11-25.",
        epilog=f"roles of tools:\n{roles}\n\nthe page that is cited: {PAGE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", nargs="?", help="of the MCP endpoint, such as http://127.0.0.1:8931/mcp")
    parser.add_argument("--tool", action="append", default=[], metavar="ROLE=TOOL", help="or ROLE='TOOL {JSON}'")
    parser.add_argument("--only", action="append", default=[], metavar="NAMES", help="scenarios or checks")
    parser.add_argument("--list", nargs="?", const="text", choices=("text", "markdown"), help="what is checked")
    parser.add_argument("--strict", action="store_true", help="SHOULD, MAY and INTEROP fail the run too")
    parser.add_argument("-o", "--json", metavar="FILE", help="write the outcome as JSON; - is standard output")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="with every request")
    parser.add_argument("--header-other", action="append", default=[], metavar="'NAME: VALUE'", help="of a second user")
    parser.add_argument("--timeout", type=float, default=30, metavar="SECONDS", help="for each step (30)")
    parser.add_argument("--poll", type=float, default=0.2, metavar="SECONDS", help="between two tasks/get (0.2)")
    parser.add_argument("--seconds", type=float, default=2, help="how long the slow tool works (2)")
    parser.add_argument("--at-once", type=int, default=8, metavar="N", help="checks that run together (8)")
    return parser
