"""`python -m scripts.preset_pages`: write docs/engines/presets/NAME.md, and their table in docs/engines/http.md.

They are made from the files of the presets of `adapter: http`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from mcp_workflows_http import HttpSettings
from mcp_workflows_http.definition import Ask, Cancel, Request
from mcp_workflows_http.presets import preset_names, presets, read_preset

from mcp_workflows.adapter import Signature, StartGuarantee
from scripts.config_reference import fill_region

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "engines" / "presets"
INDEX: Final = FOLDER.parent / "http.md"
_PROOFS: Final = {
    "real": "passes the [adapter contract](../../extend/write-an-adapter.md#prove-it) on the engine itself",
    "recorded": "tested on a server that follows the vendor's specification, never on the engine itself",
    "read": "written from the requests and replies of other clients, never run",
}
_REPEATS: Final = {
    StartGuarantee.KEYED: "after a lost reply, the server repeats the start. The API starts one execution per key.",
    StartGuarantee.FINDABLE: (
        "after a lost reply, the server searches for the key, and repeats the start only if it finds nothing."
    ),
    StartGuarantee.ONCE: "after a lost reply, the outcome is unknown. The server never repeats the start.",
}
_SIGNED: Final = {
    Signature.HUB: "`X-Hub-Signature-256`",
    Signature.GITLAB: "`X-Gitlab-Token`",
    Signature.STANDARD: "Standard Webhooks",
    Signature.BEARER: "a bearer token",
}
_PLACEHOLDER: Final = re.compile(r"\{\{.*?\}\}")
_NAME: Final = re.compile(r"(?<![.\w])(options|vars)\.(\w+)")


def page(name: str) -> str:
    """Return the page of a preset."""
    about = presets()[name]
    product = about.title.partition(" (")[0]
    written: Any = read_preset(name)
    example = {**written["about"]["example"]}
    workflow = example.pop("workflow")
    found = HttpSettings.model_validate({"url": "https://api.example.com", **example, "preset": name})
    return "\n".join(
        [
            f"# {about.title}",
            "",
            f"Run {product} jobs as MCP tasks with `preset: {name}` of [`adapter: http`](../http.md).",
            "",
            "```yaml",
            *_configuration(name, example, workflow),
            "```",
            "",
            about.notes.strip(),
            "",
            f"`mcp-workflows print presets {name}` prints it. Your settings [override it](../http.md#presets).",
            "",
            "## Reference",
            "",
            "| | |",
            "|---|---|",
            f"| verified | {about.since}: *{about.verified}*, {_PROOFS[about.verified]} |",
            *_names(written),
            *_facts(found),
            "",
            "## Statuses",
            "",
            "| `describe.status` | task |",
            "|---|---|",
            *_statuses(found),
            "| any other | still running |",
            "",
        ]
    )


def table() -> str:
    """Return the table of all presets."""
    rows = (
        f"| [`{name}`](presets/{name}.md) | {about.title} | `{read_preset(name)['starts']}` "
        f"| {about.verified}, {about.since} |"
        for name, about in presets().items()
    )
    return "\n".join(
        [
            "| preset | for | starts | verified |",
            "|---|---|---|---|",
            *rows,
            "",
            "- `real`: the [adapter contract](../extend/write-an-adapter.md#prove-it) passes on the engine itself.",
            "- `recorded`: tested on a server that follows the vendor's specification.",
            "- `read`: written from the requests and replies of other clients, never run.",
        ]
    )


def index(text: str) -> str:
    """Return the page on presets with its table updated."""
    return fill_region(text, "presets", table())


def _configuration(name: str, example: Mapping[str, Any], workflow: str) -> Iterator[str]:
    yield "engines:"
    yield "  jobs:"
    yield "    adapter: http"
    yield f"    preset: {name}"
    for key, value in example.items():
        yield f"    {key}: {_flow(value)}"
    yield "tools:"
    yield f"  run: {{engine: jobs, workflow: {_flow(workflow)}}}"


def _flow(value: Any) -> str:  # any JSON value
    """Return a value as YAML on one line, as a person would write it."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value).items()
        return "{" + ", ".join(f"{key}: {_flow(each)}" for key, each in pairs) + "}"
    text = str(value)
    is_plain = text.startswith("https://") or not (text[:1].isdigit() or set("${:#") & set(text))
    return text if is_plain else f'"{text}"'


def _names(written: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names that the expressions read of a tool and of its engine."""
    definition = {key: value for key, value in written.items() if key != "about"}
    read = set(_NAME.findall(json.dumps(definition)))
    for scope, owner in (("vars", "the engine"), ("options", "a tool")):
        defaults = definition.get(scope, {})
        names = sorted(name for of, name in read if of == scope)
        texts = [f"`{name}`" + (f" (default: {defaults[name]})" if name in defaults else "") for name in names]
        if texts:
            yield f"| `{scope}` of {owner} | {', '.join(texts)} |"


def _line(request: Request) -> str:
    written = f"{request.method} {request.path or request.url}"
    return f"`{written.replace('|', chr(92) + '|')}`"


def _facts(found: HttpSettings) -> Iterator[str]:
    yield f"| start | {_line(found.start.request)} |"
    refused = " Another workflow or input under the same key is refused." if found.start.same else ""
    advice = found.check.advice if found.starts is StartGuarantee.ONCE else None
    hint = f" `mcp-workflows check` reports: *{advice}*." if advice else ""
    yield f"| `starts: {found.starts.value}` | {_REPEATS[found.starts]}{refused}{hint} |"
    yield from (_question(name, ask) for name, ask in found.asks.items())
    describe = found.describe
    parts = {
        "steps": describe.steps,
        "progress": describe.progress,
        "the end of the log": describe.log,
        "a link to the engine's page": describe.url,
    }
    if shown := [name for name, part in parts.items() if part is not None]:
        yield f"| a task shows | {', '.join(shown)} |"
    output: Any = describe.output
    if isinstance(output, Mapping):
        keys = cast("Mapping[str, Any]", output)
        yield f"| result | {', '.join(f'`{key}`' for key in keys)} |"
    elif output is not None:
        yield f"| result | `{output}` |"
    yield f"| cancellation | {_cancellation(found.cancel)} |"
    if found.workflows is not None:
        yield "| `mcp-workflows init --add` | drafts a tool for each workflow, with its inputs |"
    if found.batch_status is not None:
        yield "| many tasks | one list shows which still run |"
    if found.webhook is not None:
        signed = _SIGNED[found.webhook.signature]
        yield (
            f"| [webhook](../http.md#webhooks) | `https://YOUR-SERVER/engines/jobs/webhook`, signed by {signed}."
            " Set `webhook_secret`. |"
        )
    if (rate := found.rate) is not None:
        hours = rate.per.total_seconds() / 3600
        yield f"| rate limit | {rate.calls:g} calls in {hours:g} h; this server uses {rate.share:.0%} of them |"


def _cancellation(cancel: Cancel | None) -> str:
    if cancel is None:
        return "not possible"
    later = ", once `cancel.when` is true" if cancel.when else ""
    return f"{_line(cancel.request)}{later}"


def _question(name: str, ask: Ask) -> str:
    message = _PLACEHOLDER.sub("...", ask.message)
    text = "the engine's own text" if message == "..." else f"*{message}*"
    place = f"| question `{name}` | {text}."
    if not ask.is_on_engine_page:
        return f"{place} People answer in the chat; the answer arrives as the account of `auth`. |"
    other = (
        f" `asks: {{{name}: {{answer_in: chat}}}}` takes the answer in the chat instead, and sends it as the account of"
        " `auth`."
    )
    return f"{place} It links to the engine's page, where people answer.{other if ask.send is not None else ''} |"


def _statuses(found: HttpSettings) -> Iterator[str]:
    for code, meaning in found.describe.codes.items():
        if "{{" not in meaning:
            yield f"| HTTP {code} | {meaning} |"
    words = found.describe.map
    for status in ("running", "succeeded", "failed", "cancelled"):
        if said := getattr(words, status):
            yield f"| {', '.join(f'`{word}`' for word in said)} | {status} |"


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for file in FOLDER.glob("*.md"):
        file.unlink()
    for name in preset_names():
        (FOLDER / f"{name}.md").write_text(page(name))
    INDEX.write_text(index(INDEX.read_text()))


if __name__ == "__main__":
    main()
