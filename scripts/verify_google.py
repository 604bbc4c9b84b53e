"""Settles, in your own Google Cloud project, each point that was never run against Google, in one table.

It deploys a few small workflows named `mcp-workflows-verify-...`, runs each a few times, and removes them again. That
takes about four minutes and costs less than a cent. You need roles/workflows.admin on the project, and
roles/iam.serviceAccountUser on the account that the workflows run as. What is not as the adapter assumes is marked;
please open an issue with the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import GoogleAuthError
from httpx2 import HTTPError
from rich.markup import escape
from rich.table import Table

from scripts.verify_google_lab import Lab, Seen, code, lab
from scripts.verify_google_points import POINTS
from scripts.verify_lab import NotTriedError, console

_WORDS: Final = {True: "[green]as assumed[/]", False: "[red]OTHER[/]", None: "noted"}


def main() -> int:
    """Exit code 0 if nothing is other than assumed."""
    given = _arguments()
    try:
        found = lab(
            given.project,
            given.location,
            given.emulator,
            account=given.service_account,
            sidecar=given.sidecar,
            audience=given.audience,
        )
    except GoogleAuthError as error:
        console.print(f"verify-google: {error}", markup=False)
        return 1
    try:
        found.deployed()  # whether anything can be tried at all
    except (GoogleAPICallError, GoogleAuthError) as error:
        console.print(f"verify-google: {error}", markup=False)
        return 1
    table = Table("what", "assumed", "seen", "", show_lines=True)
    try:
        verdicts = [verdict for point in POINTS for verdict in _settle(point, found, table)]
    finally:
        found.tidy()
    console.print(table)
    wrong = verdicts.count(False)
    console.print(f"{len(verdicts)} points, {wrong} other than assumed", markup=False)
    return 1 if wrong else 0


def _settle(point: Callable[[Lab], Iterator[Seen]], at: Lab, table: Table) -> Sequence[bool | None]:
    """The rows of one point, whatever comes."""
    what = (point.__doc__ or point.__name__).strip()
    seen: list[Seen] = []
    try:
        seen.extend(point(at))
    except NotTriedError as reason:
        seen.append(Seen(assumed="", text=f"not tried: {reason}", ok=None))
    except GoogleAPICallError as error:
        seen.append(Seen(assumed="", text=f"could not be tried: {code(error)}: {error.message}", ok=None))
    except (GoogleAuthError, HTTPError) as error:
        seen.append(Seen(assumed="", text=f"could not be tried: {type(error).__name__}", ok=None))
    for number, each in enumerate(seen):
        table.add_row("" if number else what, escape(each.assumed), escape(each.text), _WORDS[each.ok])
    return [each.ok for each in seen]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/verify-google", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--project", help="default: that of your credentials")
    parser.add_argument("--location", required=True, help="europe-west1, for instance")
    parser.add_argument("--service-account", metavar="EMAIL", help="what the workflows run as; default: the project's")
    parser.add_argument("--sidecar", metavar="URL", help="https://HOST/engines/ENGINE of a sidecar that has `inbound`")
    parser.add_argument("--audience", metavar="URL", help="its `inbound.audience`; default: the URL of --sidecar")
    parser.add_argument("--emulator", metavar="HOST:PORT", help="a local engine instead of Google")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
