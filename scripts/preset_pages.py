"""`python -m scripts.preset_pages`: writes docs/presets/NAME.md from the files of the presets of `adapter: http`."""

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

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "engines" / "presets"
_PROOFS: Final = {
    "real": "the [contract of adapters](../../extend/write-an-adapter.md) passes on the engine itself",
    "recorded": "tested on a server that answers as the vendor's description says; never on the engine itself",
    "read": "written from what others' clients send and read; never tried",
}
_REPEATS: Final = {
    StartGuarantee.KEYED: "The API starts one execution for one key: after a lost reply the start is sent again.",
    StartGuarantee.FINDABLE: (
        "After a lost reply `find` searches for the key, and the start is sent again only if nothing is found."
    ),
    StartGuarantee.ONCE: "After a lost reply the outcome is unknown, and nothing is started again.",
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
    written: Any = read_preset(name)
    example = {**written["about"]["example"]}
    workflow = example.pop("workflow")
    found = HttpSettings.model_validate({"url": "https://api.example.com", **example, "preset": name})
    return "\n".join(
        [
            f"# {about.title}",
            "",
            f"`preset: {name}`, {about.since}. Verified: *{about.verified}*: {_PROOFS[about.verified]}.",
            "",
            about.notes.strip(),
            "",
            "```yaml",
            *_configuration(name, example, workflow),
            "```",
            "",
            *_names(written),
            *_facts(found),
            "",
            "## Statuses",
            "",
            "| `describe.status` | the task is |",
            "|---|---|",
            *_statuses(found),
            "",
            f"Any other word means that it still runs. `mcp-workflows print presets {name}` prints the definition.",
            "What an engine sets itself overrides it key by key: [Any job API](../http.md#presets).",
            "",
        ]
    )


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
    """Say which names the expressions read of a tool and of its engine."""
    definition = {key: value for key, value in written.items() if key != "about"}
    read = set(_NAME.findall(json.dumps(definition)))
    for scope, owner in (("vars", "the engine"), ("options", "a tool")):
        defaults = definition.get(scope, {})
        names = sorted(name for of, name in read if of == scope)
        said = [f"`{name}`" + (f" (default: {defaults[name]})" if name in defaults else "") for name in names]
        if said:
            yield f"- **`{scope}`** of {owner}: {', '.join(said)}."


def _line(request: Request) -> str:
    return f"`{request.method} {request.path or request.url}`"


def _facts(found: HttpSettings) -> Iterator[str]:
    yield f"- **The start** sends {_line(found.start.request)}."
    refused = " With other arguments it is refused." if found.start.same else ""
    yield f"- **A repeated start** (`starts: {found.starts.value}`): {_REPEATS[found.starts]}{refused}"
    if found.starts is StartGuarantee.ONCE and found.check.advice:
        yield f"  `mcp-workflows check` says: *{found.check.advice}*."
    yield from (_question(name, ask) for name, ask in found.asks.items())
    describe = found.describe
    parts = {
        "its steps": describe.steps,
        "its progress": describe.progress,
        "the end of its log": describe.log,
        "its page": describe.url,
    }
    if told := [name for name, part in parts.items() if part is not None]:
        yield f"- **A task tells** {', '.join(told)}."
    output: Any = describe.output
    if isinstance(output, Mapping):
        keys = cast("Mapping[str, Any]", output)
        yield f"- **The result** has {', '.join(f'`{key}`' for key in keys)}."
    elif output is not None:
        yield f"- **The result** is `{output}`."
    yield f"- **Cancelling** {_cancellation(found.cancel)}."
    if found.workflows is not None:
        yield "- **`mcp-workflows init --add`** drafts a tool for each workflow, with its inputs."
    if found.batch_status is not None:
        yield "- **Many tasks** are polled by a list of what runs."
    if found.webhook is not None:
        signed = _SIGNED[found.webhook.signature]
        yield (
            f"- **Webhook**: set `webhook_secret`, and let the API call `https://YOUR-SERVER/engines/jobs/webhook`,"
            f" signed by {signed}. [Webhooks](../http.md#webhooks) says which events to choose."
        )
    if (rate := found.rate) is not None:
        hours = rate.per.total_seconds() / 3600
        yield f"- **Rate limit**: {rate.calls:g} calls in {hours:g} h, of which this server takes {rate.share:.0%}."


def _cancellation(cancel: Cancel | None) -> str:
    if cancel is None:
        return "is not possible"
    later = ", as soon as `cancel.when` is true" if cancel.when else ""
    return f"sends {_line(cancel.request)} to what still runs{later}"


def _question(name: str, ask: Ask) -> str:
    message = _PLACEHOLDER.sub("...", ask.message)
    text = "the engine's own text" if message == "..." else f"*{message}*"
    if not ask.is_on_engine_page:
        return f"- **Question `{name}`**: {text}. It is answered in the chat, and sent as the account of `auth`."
    where = "It is answered on the engine's own page, to which the question links."
    other = (
        f" `asks: {{{name}: {{answer_in: chat}}}}` takes the answer in the chat, and sends it as the account of `auth`."
    )
    return f"- **Question `{name}`**: {text}. {where}{other if ask.send is not None else ''}"


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


if __name__ == "__main__":
    main()
