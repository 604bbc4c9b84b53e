"""Checks of a workflow's source: the steps that gates name, and the settings that questions need."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

from mcp_workflows.adapter import JSON, Finding, closest
from mcp_workflows.errors import EngineError
from mcp_workflows_google.client import Client
from mcp_workflows_google.gates import gate_step
from mcp_workflows_google.outcome import RETRY_ROUTINE
from mcp_workflows_google.resources import WorkflowName, WorkflowResource
from mcp_workflows_google.settings import GoogleSettings
from mcp_workflows_google.tooling.definition import AWAITS, Definition, Routine, read_definition
from mcp_workflows_google.tooling.draft import draft

ELICIT: Final = "mcp_elicit"
CLAIM: Final = "mcp_claim"
SHIPPED: Final = frozenset({ELICIT, CLAIM, RETRY_ROUTINE})
URL: Final = "MCP_WORKFLOWS_URL"  # name in `user_env_vars` that both subworkflows read
AUDIENCE: Final = "MCP_WORKFLOWS_AUDIENCE"
"""See `mcp-workflows docs google-contract`."""


async def verify(
    client: Client, settings: GoogleSettings, workflow: str, gates: Mapping[str, Mapping[str, JSON]]
) -> list[Finding]:
    """Verify a workflow: each missing part is a problem; an unreadable source is unknown, not a problem."""
    try:
        found = await client.workflow(WorkflowName.parse(workflow, await client.place()))
    except EngineError as error:
        return [Finding(ok=None, text=f"its steps could not be verified: {error}")]
    read = await read_definition(found.source)
    if read is None:
        return [Finding(ok=None, text="its steps could not be verified: its source cannot be read")]
    return [*_gates(read, gates), *_inbound(read, found, settings), *_suggestion(read)]


def _gates(read: Definition, gates: Mapping[str, Mapping[str, JSON]]) -> Iterator[Finding]:
    first: dict[tuple[str | None, ...], str] = {}
    for gate, words in gates.items():
        when = words.get("when")
        step, routine, method = gate_step(when), _word(when, "routine"), _word(when, "method")
        where = f"gates.{gate}.when"
        if first.setdefault((step, routine, method), gate) != gate:
            taken = f"{where}: step {step!r} is asked about by gate {first[step, routine, method]} already"
            yield Finding(ok=False, text=taken, hint="leave one of the two out")
        elif wrong := place_problem(read, routine, step):
            text, hint = wrong
            yield Finding(ok=False, text=f"{where}: {text}", hint=hint)
        elif method is not None and (wrong := _wrong_method(read, method)):
            text, hint = wrong
            yield Finding(ok=False, text=f"{where}.method: {text}", hint=hint)
        elif said := wait_problem(read, routine, step):
            yield Finding(ok=True, text=f"{where}: {said}")


def place_problem(read: Definition, routine: str | None, step: str) -> tuple[str, str] | None:
    """Return the problem with the place of a gate, and a suggestion; None if there is none."""
    if routine is not None and routine not in read.routines:
        return f"there is no routine {routine!r}", _meant(routine, read.routines)
    steps = dict.fromkeys(sorted(each for found in _routines(read, routine) for each in found.steps))
    own = dict.fromkeys(each for each in steps if any(each in found.steps for found in _own(read)))
    inside = f" in {routine}" if routine else ""
    return None if step in steps else (f"there is no step {step!r}{inside}", _meant(step, own or steps))


def wait_problem(read: Definition, routine: str | None, step: str) -> str | None:
    """Return a remark on a step that does not wait for a callback itself; None if it does."""
    if any(step in each.awaiting for each in _routines(read, routine)):
        return None
    waiting = ", ".join(sorted(frozenset[str]().union(*(each.awaiting for each in _own(read))))) or "none"
    return f"step {step!r} does not call {AWAITS} itself: it may never be asked about (steps that do: {waiting})"


def _wrong_method(read: Definition, method: str) -> tuple[str, str] | None:
    """Return the problem with the method of a gate, and a suggestion; None if an expression may set the method."""
    methods = frozenset[str]().union(*(routine.methods for routine in _own(read)))
    if method in methods or not methods or any("{" in each for each in (method, *methods)):
        return None
    return f"the workflow opens no callback of method {method}", f"it opens: {', '.join(sorted(methods))}"


def _routines(read: Definition, routine: str | None) -> Sequence[Routine]:
    return [read.routines[routine]] if routine else list(read.routines.values())


def _own(read: Definition) -> Sequence[Routine]:
    """Return the routines of the author, without ours."""
    return [routine for name, routine in read.routines.items() if name not in SHIPPED]


def _word(when: JSON, key: str) -> str | None:
    """Return a word of a gate's `when`."""
    word = cast("Mapping[str, JSON]", when).get(key) if isinstance(when, Mapping) else None
    return None if word is None else str(word)


def _meant(name: str, there: Mapping[str, object]) -> str:
    meant = closest(name, there)
    return f"did you mean {meant!r}?" if meant else f"there are: {', '.join(there) or 'none'}"


def _inbound(read: Definition, found: WorkflowResource, settings: GoogleSettings) -> Iterator[Finding]:
    """Yield findings on the settings that a workflow needs to call the MCP server."""
    calling = [name for name in (ELICIT, CLAIM) if read.calls(name)]
    if not calling:
        return
    what = " and ".join(calling)
    if settings.inbound is None:
        text = f"it calls {what}, and the engine has no inbound"
        yield Finding(ok=False, text=text, hint="see: mcp-workflows docs google-access")
        return
    if wrong := _wrong_url(found.env.get(URL)):
        hint = f"deploy it with --update-env-vars {URL}=https://THIS-SERVER/engines/ENGINE"
        yield Finding(ok=False, text=f"it calls {what}, and is deployed {wrong}", hint=hint)
    audience = found.env.get(AUDIENCE) or found.env.get(URL)
    if audience and audience != settings.inbound.audience:
        text = f"its tokens are for {audience} ({AUDIENCE}, or {URL}), and inbound.audience is another: all are refused"
        yield Finding(ok=False, text=text, hint=f"deploy it with {AUDIENCE}={settings.inbound.audience}")
    account = service_account_email(found.service_account)
    if account is not None and account not in settings.inbound.accounts:
        text = f"it runs as {account}, which is not among inbound.accounts: its requests are refused"
        yield Finding(ok=False, text=text, hint="add it there, or deploy the workflow with another service account")


def _wrong_url(url: str | None) -> str | None:
    """Return the problem with the URL of the MCP server in a workflow, as far as it can be known."""
    if not url:
        return f"without {URL}"
    if not url.startswith(("https://", "http://")):
        return f"with {URL}={url}, which is no URL"
    if url.endswith("/"):
        return f"with {URL}={url}, whose last slash is one too many"
    return None if re.search(r"/engines/[^/?#]+$", url) else f"with {URL}={url}, which is not that of an engine"


def service_account_email(written: str) -> str | None:
    """Return the email of a service account from Google's notation; None if it is missing or a number."""
    account = written.rpartition("/")[2]  # projects/P/serviceAccounts/EMAIL
    return account if "@" in account else None


def _suggestion(read: Definition) -> Iterator[Finding]:
    drafted = draft(read)
    if drafted is not None:
        fields = ", ".join(drafted["properties"])
        schema = "{type: object, properties: {" + ", ".join(f"{name}: {{}}" for name in drafted["properties"]) + "}}"
        yield Finding(ok=True, text=f"it reads {fields}", hint=f"its input might be, correct it: {schema}")
