"""The command line: `mcp-tasks-conformance URL`, or `python -m mcp_tasks_conformance URL`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
from rich.console import Console

from mcp_tasks_conformance.check import Check, CheckError, CheckResult, ToolRole
from mcp_tasks_conformance.fixtures import ROLE_DESCRIPTIONS, UsageError, official_fixtures, parse_event, parse_fixture
from mcp_tasks_conformance.report import EVENTS_PAGE, PAGE, checks_as_markdown, checks_as_text, print_report, to_json
from mcp_tasks_conformance.runner import has_failed, run_checks, select_checks
from mcp_tasks_conformance.server_under_test import RunSettings

PROG = "mcp-tasks-conformance"
USAGE_ERROR = 2  # exit code; also for a URL without a server
INTERRUPTED = 130  # exit code
WIDTH = 140  # columns where there is no terminal


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code: 0 conforms, 1 does not, 2 wrong usage or no such server."""
    try:
        arguments = _parser().parse_args(argv)
        checks = _select_checks(arguments.only)
        if arguments.list is not None:
            to_text = checks_as_markdown if arguments.list == "markdown" else checks_as_text
            sys.stdout.write(to_text(checks) + "\n")
            return 0
        return _run(_read_settings(arguments), checks, arguments)
    except UsageError as problem:
        return _fail(str(problem))
    except KeyboardInterrupt:
        _fail("stopped; tasks that were under way may go on")
        return INTERRUPTED


def _run(settings: RunSettings, checks: Sequence[Check], arguments: argparse.Namespace) -> int:
    console = Console(stderr=arguments.json == "-", width=None if sys.stdout.isatty() else WIDTH)
    with console.status(f"{len(checks)} checks") if console.is_terminal else console:
        try:
            results = anyio.run(run_checks, settings, checks)
        except CheckError as problem:
            return _fail(f"{settings.url}: {problem}{_hint(str(problem))}")
    print_report(console, settings, results, strict=arguments.strict)
    if arguments.json:
        _write_json(arguments.json, settings, results, strict=arguments.strict)
    return int(has_failed(results, strict=arguments.strict))


def _write_json(path: str, settings: RunSettings, results: Sequence[CheckResult], *, strict: bool) -> None:
    text = json.dumps(to_json(settings, results, strict=strict), indent=2, ensure_ascii=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise UsageError(f"--json {path}: {error.strerror}") from None


def _hint(problem: str) -> str:
    if "HTTP 401" in problem or "HTTP 403" in problem:
        return "; it wants credentials: --header 'Authorization: Bearer ...'"
    return "; the URL must be that of the MCP endpoint, often ending in /mcp" if "HTTP 404" in problem else ""


def _fail(text: str) -> int:
    sys.stderr.write(f"{PROG}: {text}\n")
    return USAGE_ERROR


def _select_checks(only: Sequence[str]) -> Sequence[Check]:
    try:
        return select_checks([name for names in only for name in names.split(",")])
    except KeyError as error:
        raise UsageError(f"--only {error.args[0]!r}: there is no such check or scenario; see --list") from None


def _read_settings(arguments: argparse.Namespace) -> RunSettings:
    if arguments.url is None:
        raise UsageError("whose server? give the URL of its MCP endpoint, such as http://127.0.0.1:8931/mcp")
    if not str(arguments.url).startswith(("http://", "https://")):
        raise UsageError(f"{arguments.url!r} is no http:// or https:// URL")
    if min(arguments.timeout, arguments.poll, arguments.seconds, arguments.at_once) <= 0:
        raise UsageError("--timeout, --poll, --seconds and --at-once must be greater than 0")
    if arguments.callback is not None and not arguments.callback.startswith(("http://", "https://")):
        raise UsageError(f"--callback {arguments.callback!r} is no http:// or https:// URL")
    return RunSettings(
        url=arguments.url,
        fixtures={**official_fixtures(arguments.seconds), **dict(map(parse_fixture, arguments.tool))},
        headers=_parse_headers(arguments.header),
        other_headers=_parse_headers(arguments.header_other) if arguments.header_other else None,
        timeout=arguments.timeout,
        poll_interval=arguments.poll,
        slow_seconds=arguments.seconds,
        concurrency=arguments.at_once,
        event=parse_event(arguments.event) if arguments.event else None,
        callback=arguments.callback,
        listen=arguments.listen,
        heartbeat=arguments.heartbeat,
    )


def _parse_headers(options: Sequence[str]) -> Mapping[str, str]:
    pairs = [text.partition(":") for text in options]
    if not all(colon and name.strip() for name, colon, _ in pairs):
        raise UsageError("--header and --header-other take 'Name: value'")  # without the text, which may be a secret
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _parser() -> argparse.ArgumentParser:
    roles = "\n".join(
        f"  {role:10} {ROLE_DESCRIPTIONS[role]}\n{'':13}by default {official_fixtures(2)[role]}" for role in ToolRole
    )
    parser = argparse.ArgumentParser(
        prog=PROG,
        description="Checks whether a server's tasks are those of MCP 2025-11-25, and its events those of MCP Events.",
        epilog=f"roles of tools:\n{roles}\n\nthe pages that are cited: {PAGE}\n{EVENTS_PAGE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", nargs="?", help="of the MCP endpoint, such as http://127.0.0.1:8931/mcp")
    parser.add_argument("--tool", action="append", default=[], metavar="ROLE=TOOL", help="or ROLE='TOOL {JSON}'")
    parser.add_argument("--event", metavar="EVENT", help="to subscribe to, or 'EVENT {JSON}'; by default task.ended")
    parser.add_argument("--callback", metavar="URL", help="where the server reaches this suite; for webhooks of Events")
    parser.add_argument("--listen", metavar="HOST:PORT", help="where that is here, if it is not in --callback")
    parser.add_argument("--heartbeat", type=float, default=0, metavar="SECONDS", help="wait for a heartbeat (0: no)")
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


if __name__ == "__main__":
    sys.exit(main())
