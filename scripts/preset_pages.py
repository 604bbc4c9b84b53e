"""`python -m scripts.preset_pages`: writes docs/presets/NAME.md from the files of the presets of `adapter: http`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from mcp_workflows_http import HttpSettings
from mcp_workflows_http.definition import Ask, Place
from mcp_workflows_http.presets import preset_names, presets, read_preset

from mcp_workflows.adapter import Signature, StartGuarantee

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "presets"
_PROOFS: Final = {
    "real": "the [contract of adapters](../write-an-adapter.md) passes on the engine itself",
    "recorded": "tested on a server that answers as the vendor's description says; never on the engine itself",
    "read": "written from what others' clients send and read; never tried",
}
_REPEATS: Final = {
    StartGuarantee.KEYED: "The API starts one execution for one key: after a lost reply the start is sent again.",
    StartGuarantee.FINDABLE: "After a lost reply it is searched for by its key, and only then started again.",
    StartGuarantee.ONCE: "After a lost reply the outcome is unknown, and nothing is started again.",
}
_SIGNED: Final = {
    Signature.HUB: "`X-Hub-Signature-256`",
    Signature.GITLAB: "`X-Gitlab-Token`",
    Signature.STANDARD: "Standard Webhooks",
    Signature.BEARER: "a bearer token",
}
_PLACEHOLDER: Final = re.compile(r"\{\{.*?\}\}")


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
            *_facts(found),
            "",
            "## Statuses",
            "",
            "| the API says | the task is |",
            "|---|---|",
            *_statuses(found),
            "",
            "Any other word means that it still runs. Engines override it key by key: [Any job API](../http.md).",
            f"`mcp-workflows preset show {name}` prints the file.",
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


def _facts(found: HttpSettings) -> Iterator[str]:
    yield f"- **A repeated start** (`starts: {found.starts.value}`): {_REPEATS[found.starts]}"
    if found.starts is StartGuarantee.ONCE and found.check.advice:
        yield f"  To make it safe: {found.check.advice}."
    yield from (_question(name, ask) for name, ask in found.asks.items())
    look = found.look
    parts = {
        "its steps": look.steps,
        "its progress": look.progress,
        "the end of its log": look.log,
        "its page": look.url,
    }
    if told := [name for name, part in parts.items() if part is not None]:
        yield f"- **A task tells** {', '.join(told)}."
    yield f"- **Cancelling** is {'possible' if found.cancel else 'not possible'}."
    if found.workflows is not None:
        yield "- **`mcp-workflows import`** drafts a tool for each workflow, with its inputs."
    if found.sweep is not None:
        yield "- **Many tasks** are looked at by a list of what runs."
    if found.webhook is not None:
        signed = _SIGNED[found.webhook.signature]
        yield f"- **Webhook**: `/engines/ENGINE/webhook`, once `webhook_secret` is set; calls prove it by {signed}."
    if (rate := found.rate) is not None:
        hours = rate.per.total_seconds() / 3600
        yield f"- **Rate limit**: {rate.calls:g} calls in {hours:g} h, of which this server takes {rate.share:.0%}."


def _question(name: str, ask: Ask) -> str:
    message = _PLACEHOLDER.sub("...", ask.message)
    text = "the engine's own text" if message == "..." else f"*{message}*"
    if ask.at is Place.CLIENT:
        return f"- **Question `{name}`**: {text}. It is answered in the client, and sent as the account of `auth`."
    where = "It is answered on the engine's own page, to which the question links."
    other = (
        f" `asks: {{{name}: {{at: client}}}}` takes the answer in the client, and sends it as the account of `auth`."
    )
    return f"- **Question `{name}`**: {text}. {where}{other if ask.send is not None else ''}"


def _statuses(found: HttpSettings) -> Iterator[str]:
    for code, meaning in found.look.codes.items():
        if "{{" not in meaning:
            yield f"| HTTP {code} | {meaning} |"
    words = found.look.map
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
