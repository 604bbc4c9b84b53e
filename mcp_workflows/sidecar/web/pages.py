"""The pages: open questions, one question with its form, login and logout. They work without JavaScript."""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeAlias, cast
from urllib.parse import parse_qsl, quote, urlsplit

import anyio
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_workflows.access import Principal, is_loopback
from mcp_workflows.access.audit import Event, record_of
from mcp_workflows.access.authn.settings import AuthSettings
from mcp_workflows.adapter import JSON, InputRequest
from mcp_workflows.adapter.display_text import cleaned, quoted, safe_link
from mcp_workflows.errors import ConfigError, IssuerUnavailable, LimitReached, RequestError, StoreError
from mcp_workflows.receiver.workflows import Workflows
from mcp_workflows.sidecar.config.models import WebSettings
from mcp_workflows.sidecar.web.login import (
    CALLBACK,
    KEY_NAME,
    LOGIN_WITHIN,
    LONGEST,
    LoginFailed,
    OpenIdLogin,
    OtherBrowserError,
    WebSessions,
    local_path,
)
from mcp_workflows.tasks.service import NOT_FOUND
from mcp_workflows.tools.dialogue import Action, AnswerWay
from mcp_workflows.tools.json_schema import Schema, is_list, list_at, object_at
from mcp_workflows.tools.questions import ELICIT, REASON, argument_lines, choices_of, yes_no_field

logger = logging.getLogger(__name__)

SESSION: Final = "__Host-mcp-workflows"  # cookies: browsers bind such names to this host, TLS and all paths
BROWSER: Final = "__Host-mcp-workflows-login"
MOST_NAME: Final = 60  # characters of the name of a host
MOST_BODY: Final = 64 * 1024  # bytes of a form
MOST_FIELDS: Final = 200
_COOKIE: Final = re.compile(r"[A-Za-z0-9_-]{43}")  # 32 bytes
_HERE: Final = Path(__file__).parent / "templates"
_POLICY: Final = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # without any referrer, browsers would send forms with `Origin: null`
    "X-Content-Type-Options": "nosniff",
    "X-Robots-Tag": "noindex",
}
_TLS_ONLY: Final = {"Strict-Transport-Security": "max-age=31536000"}
_TOO_MANY: Final = 429
_UNAVAILABLE: Final = 503

Page: TypeAlias = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a form, as the template renders it."""

    name: str
    title: str
    kind: str  # choice, choices, number, long, json, or an HTML input type
    required: bool
    description: str = ""
    choices: Sequence[tuple[str, str]] = ()  # value and label
    value: str | Sequence[str] = ""
    rules: Mapping[str, object] = field(default_factory=dict[str, object])  # attributes of the input


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form of a question."""

    fields: Sequence[Field]
    decides: bool  # shows two large buttons, Approve and Decline
    yes: str | None  # the single yes-or-no field that the buttons answer
    can_decline: bool


class Web:
    """The pages of a server. They allow their visitor the same as over MCP, through the same service."""

    def __init__(self, workflows: Workflows, settings: WebSettings, auth: AuthSettings, web_url: str) -> None:
        parts = urlsplit(web_url)
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise ConfigError(
                "server.web: its pages need https for the login: set server.public_url to the https:// address of the "
                "proxy in front, or listen on loopback"
            )
        self._workflows = workflows
        self._settings = settings
        self._auth = auth
        self._url = web_url
        self._path = parts.path
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._headers = _HEADERS | (_TLS_ONLY if parts.scheme == "https" else {})
        self._logins: OpenIdLogin | None = None
        self._sessions: WebSessions | None = None
        self._setting_up = anyio.Lock()
        self._templates = Environment(
            loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._templates.filters["when"] = lambda at: f"{cast('datetime', at):%d %b %Y, %H:%M} UTC"
        self._templates.filters["clean"] = lambda text: cleaned(str(text))
        self._templates.filters["named"] = lambda name: quoted(str(name), MOST_NAME)
        self._templates.filters["exact"] = exact

    def routes(self, guards: Sequence[Middleware]) -> Sequence[Route]:
        """Return the routes; the guards check each request first."""
        guarded = [*guards, Middleware(SameOrigin, origin=self._origin, headers=self._headers)]
        pages: Sequence[tuple[str, Page, str]] = [
            ("/approvals", self._inbox, "GET"),
            ("/approvals/{link}", self._question, "GET"),
            ("/approvals/{link}", self._answer, "POST"),
            ("/login", self._login, "GET"),
            (CALLBACK, self._callback, "GET"),
            ("/logout", self._logout, "POST"),
            ("/pages.css", self._style, "GET"),
        ]
        return [Route(path, self._safe(page), methods=[method], middleware=guarded) for path, page, method in pages]

    def _safe(self, page: Page) -> Page:
        """Return the page with its security headers, and with messages for errors."""

        async def serve(request: Request) -> Response:
            try:
                response = await page(request)
            except (StoreError, IssuerUnavailable) as error:
                logger.warning("a page could not be served: %s", error)
                response = self._render("message.html", _UNAVAILABLE, text="Try again in a minute: the server is busy.")
            except LimitReached as reached:
                response = self._render("message.html", _TOO_MANY, text=f"Try again in a minute: {reached}.")
            for name, value in self._headers.items():
                response.headers.setdefault(name, value)
            return response

        return serve

    async def _ready(self) -> tuple[OpenIdLogin, WebSessions]:
        async with self._setting_up:
            if self._logins is None or self._sessions is None:
                secret = await self._workflows.store.secret(KEY_NAME)
                self._logins = OpenIdLogin(self._settings, self._auth, self._url, secret)
                self._sessions = WebSessions(self._workflows.store, secret)
        return self._logins, self._sessions

    async def _visitor(self, request: Request) -> Principal | None:
        _, sessions = await self._ready()
        return await sessions.find(request.cookies.get(SESSION))

    def _render(self, template: str, status: int = 200, **values: Any) -> Response:  # Any: the values of a template
        known = {"path": self._path, "visitor": None, **values}
        return HTMLResponse(self._templates.get_template(template).render(known), status)

    def _to_login(self, to: str) -> Response:
        return RedirectResponse(f"{self._path}/login?to={quote(local_path(to), safe='/')}", 303)

    # --- login and logout

    async def _login(self, request: Request) -> Response:
        """Redirect the browser to the identity provider."""
        login, _ = await self._ready()
        browser = request.cookies.get(BROWSER, "")
        browser = browser if _COOKIE.fullmatch(browser) else secrets.token_urlsafe(32)
        to, again = request.query_params.get("to", ""), request.query_params.get("again") == "1"
        try:
            response: Response = RedirectResponse(await login.begin(to, browser, again=again), 303)
        except LoginFailed as failed:
            return self._login_failed(failed)
        self._set_cookie(response, BROWSER, browser, LOGIN_WITHIN.total_seconds())
        return response

    async def _callback(self, request: Request) -> Response:
        """Complete a login after the redirect from the identity provider."""
        login, sessions = await self._ready()
        try:
            principal, to = await login.finish(request.query_params, request.cookies.get(BROWSER))
        except OtherBrowserError as other:
            return RedirectResponse(f"{self._path}/login?to={quote(other.to, safe='/')}&again=1", 303)
        except LoginFailed as failed:
            return self._login_failed(failed)
        await sessions.end(request.cookies.get(SESSION))
        response: Response = RedirectResponse(f"{self._path}{to}", 303)
        self._set_cookie(response, SESSION, await sessions.begin(principal), LONGEST.total_seconds())
        response.delete_cookie(BROWSER, secure=True, httponly=True, samesite="lax")
        self._record(Event.LOGIN, principal, "ok")
        return response

    def _login_failed(self, failed: LoginFailed) -> Response:
        logger.warning("a login failed: %s", failed.reason)
        self._workflows.audit(record_of(Event.LOGIN, None, outcome="refused", reason=failed.reason))
        return self._render("message.html", 400, text=str(failed), again=failed.to)

    async def _logout(self, request: Request) -> Response:
        principal = await self._visitor(request)
        _, sessions = await self._ready()
        await sessions.end(request.cookies.get(SESSION))
        if principal is not None:
            self._record(Event.LOGIN, principal, "ended")
        text = "You are logged out here. Your identity provider may still know you."
        response = self._render("message.html", text=text, again="/approvals")
        response.delete_cookie(SESSION, secure=True, httponly=True, samesite="lax")
        return response

    def _set_cookie(self, response: Response, name: str, value: str, seconds: float) -> None:
        response.set_cookie(name, value, max_age=round(seconds), secure=True, httponly=True, samesite="lax")

    def _record(self, event: Event, principal: Principal, outcome: str) -> None:
        self._workflows.audit(record_of(event, principal, outcome=outcome, reason="on the pages"))

    # --- questions

    async def _inbox(self, request: Request) -> Response:
        principal = await self._visitor(request)
        if principal is None:
            return self._to_login("/approvals")
        found = await self._workflows.service.inbox(principal)
        return self._render("inbox.html", visitor=_name(principal), questions=found.questions, is_cut=found.is_cut)

    async def _question(self, request: Request, wrong: str = "", given: Mapping[str, Sequence[str]] = {}) -> Response:
        principal = await self._visitor(request)
        if principal is None:
            return self._to_login(request.url.path)
        try:
            question = await self._workflows.service.question(request.path_params["link"], principal)
        except RequestError as error:
            return self._render("message.html", 404, visitor=_name(principal), text=f"{error}.")
        asked = question.request
        form = form_of(asked, given) if asked is not None and asked.method == ELICIT else None
        message = "" if asked is None else str(asked.params.get("message", ""))
        listed = "".join(f"\n{line}" for line in argument_lines(question.arguments))
        url = None if asked is None else safe_link(asked.params.get("url"))
        status = 400 if wrong else 200
        return self._render(
            "question.html",
            status,
            visitor=_name(principal),
            question=question,
            message=message.removesuffix(listed),  # the message contains the arguments, which are shown below it
            url=url,
            form=form,
            wrong=wrong,
        )

    async def _answer(self, request: Request) -> Response:
        principal = await self._visitor(request)
        if principal is None:  # no redirect: `form-action` would block it at the provider
            text = "Your session is over, and your answer was not taken. Log in, and answer again."
            return self._render("message.html", 401, text=text, again=request.url.path)
        try:
            given = await _form_data(request)
        except ValueError as error:
            return self._render("message.html", 400, visitor=_name(principal), text=str(error))
        service = self._workflows.service
        try:
            question = await service.question(request.path_params["link"], principal)
        except RequestError:
            return await self._question(request)
        try:
            if question.request is not None and question.request.method == ELICIT:
                response = response_of(form_of(question.request, given), question.request, given)
                await service.update(question.task_id, {question.key: response}, principal, AnswerWay.PAGE)
        except ValueError as error:
            return await self._question(request, f"Not accepted: {error}", given)
        except RequestError as error:
            text = str(error).removeprefix(f"inputResponses[{question.key!r}]: ")
            return await self._question(request, "" if text == NOT_FOUND else f"Not accepted: {text}", given)
        return RedirectResponse(f"{self._path}{request.url.path}", 303)

    async def _style(self, _: Request) -> Response:
        css = (_HERE / "pages.css").read_text()
        return Response(css, media_type="text/css", headers={"Cache-Control": "public, max-age=300"})


class SameOrigin:
    """ASGI middleware that refuses changes from other sites, by headers that every browser sends.

    Source: https://developer.mozilla.org/docs/Web/HTTP/Headers/Sec-Fetch-Site; older browsers send `Origin`.
    """

    def __init__(self, app: ASGIApp, origin: str, headers: Mapping[str, str]) -> None:
        """`headers`: those of a refusal."""
        self._app = app
        self._headers = headers
        self._origin = origin.lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        headers = Headers(scope=scope)
        site, origin = headers.get("sec-fetch-site"), headers.get("origin", "").lower()
        is_ours = site == "same-origin" if site is not None else origin == self._origin
        if scope["method"] in {"GET", "HEAD"} or is_ours:
            await self._app(scope, receive, send)
        else:
            logger.warning("a form from another site was refused: Sec-Fetch-Site %r, Origin %r", site, origin[:100])
            refusal = Response("This form was sent from another site.", 403, self._headers, media_type="text/plain")
            await refusal(scope, receive, send)


async def _form_data(request: Request) -> Mapping[str, Sequence[str]]:
    """Return the values of a form by field.

    Raises:
        ValueError: it is too large, or not in the format of browsers; the text is for the person.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BODY:
            raise ValueError("That is too much text.")
    found: dict[str, list[str]] = {}
    try:
        fields = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError:
        raise ValueError("This form cannot be read.") from None
    for name, value in fields:
        found.setdefault(name, []).append(value)
    return found


def _name(principal: Principal) -> str:
    return cleaned(str(principal.claims.get("name") or principal.person[1]))


def exact(value: JSON) -> str:
    """Return an argument unchanged, or as JSON in ASCII if part of it would be invisible."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return text if cleaned(text, len(text) + 1) == text else json.dumps(value)


_TEXTS: Final[Mapping[str, str]] = {"email": "email", "uri": "url", "date": "date"}
_BOUNDS: Final[Mapping[str, str]] = {
    "minLength": "minlength",
    "maxLength": "maxlength",
    "minimum": "min",
    "maximum": "max",
}
_PREFIX: Final = "answer."  # of fields, so that none is mistaken for one of ours


def form_of(request: InputRequest, given: Mapping[str, Sequence[str]] = {}) -> Form:
    """Return the form of a question, filled with previously sent values, if any."""
    properties, required = _schema_of(request)
    lone = yes_no_field({"properties": properties})
    yes = lone if lone in required else None
    decides = request.params.get("mode") != "url" and (yes is not None or not properties.keys() - {REASON})
    fields = [
        _field(name, rules, is_required=name in required, given=given)
        for name, rules in properties.items()
        if name != yes
    ]
    can_decline = request.declinable is not False or yes is not None
    return Form(fields=fields, decides=decides, yes=yes, can_decline=can_decline)


def _schema_of(request: InputRequest) -> tuple[Mapping[str, Schema], Sequence[JSON]]:
    """Return the fields of a form and the required ones, whatever a workflow put there."""
    schema = object_at(dict(request.params), "requestedSchema")
    properties = object_at(schema, "properties")
    return {name: object_at(properties, name) for name in properties}, list_at(schema, "required")


def _field(name: str, rules: Schema, *, is_required: bool, given: Mapping[str, Sequence[str]]) -> Field:
    bounds = {_BOUNDS[word]: bound for word in _BOUNDS if isinstance(bound := rules.get(word), int | float)}
    default = rules.get("default", [])
    defaults = default if is_list(default) else [default]
    values = given.get(f"{_PREFIX}{name}", ()) if given else [_text(each) for each in defaults]
    choices, kind = [(_text(value), cleaned(label)) for value, label in choices_of(rules)], str(rules.get("type"))
    found = Field(
        name=f"{_PREFIX}{name}",
        title=cleaned(str(rules.get("title") or name)),
        description=cleaned(str(rules.get("description") or "")),
        kind="json",
        required=is_required,
        value=values[0] if values else "",
        rules=bounds,
    )
    if choices and kind == "array":
        return replace(found, kind="choices", choices=choices, value=values)
    if choices:
        return replace(found, kind="choice", choices=choices)
    match kind:
        case "boolean":
            return replace(found, kind="choice", choices=[("true", "Yes"), ("false", "No")])
        case "integer" | "number":
            return replace(found, kind="number", rules={**bounds, "step": 1 if kind == "integer" else "any"})
        case "string":
            long = bounds.get("maxlength", 0) > 200 or name == REASON
            return replace(found, kind="long" if long else _TEXTS.get(str(rules.get("format")), "text"))
        case _:
            return found


def _text(value: JSON) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def response_of(form: Form, request: InputRequest, given: Mapping[str, Sequence[str]]) -> Mapping[str, JSON]:
    """Return the response in a submitted form; the service validates it like any other.

    Raises:
        ValueError: it was submitted without a button, or a field is invalid; the text is for the person.
    """
    pressed = given.get("action")
    if pressed not in ([Action.ACCEPT], [Action.DECLINE]):
        raise ValueError("press one of the buttons")
    accepts = pressed == [Action.ACCEPT]
    if request.params.get("mode") == "url":
        return {"action": Action.ACCEPT if accepts else Action.DECLINE}
    properties, _ = _schema_of(request)
    content: dict[str, JSON] = {}
    for each in form.fields:
        name = each.name.removeprefix(_PREFIX)
        values = [value for value in given.get(each.name, ()) if value.strip()]
        if values and (accepts or name == REASON):
            content[name] = _value(each.title, properties[name], values)
        elif accepts and each.required and each.kind == "choices":
            content[name] = []  # browsers send nothing for a group of empty boxes
    says_no = not accepts and form.yes is not None and request.declinable is False
    if form.yes is not None and (accepts or says_no):
        content[form.yes] = accepts
    if accepts or says_no:
        return {"action": Action.ACCEPT, "content": content}
    return {"action": Action.DECLINE, **({"content": content} if content else {})}


def _value(title: str, rules: Schema, values: Sequence[str]) -> JSON:
    """Return the JSON value of a field."""
    kind, first = str(rules.get("type")), values[0].replace("\r\n", "\n")
    if choices := {_text(value): value for value, _ in reversed(choices_of(rules))}:
        picked = [choices.get(each, each) for each in values]
        return picked if kind == "array" else choices.get(first, first)
    if kind == "string":
        return first
    try:
        found: JSON = _number(first) if kind in {"integer", "number"} else json.loads(first)
        json.dumps(found, allow_nan=False)
    except (ValueError, RecursionError):
        what = {"integer": "a whole number", "number": "a number"}.get(kind, "JSON")
        raise ValueError(f"{title} must be {what}") from None
    return found


def _number(text: str) -> float:
    """Return a number in the format of HTML forms, such as `05` and `.5`."""
    try:
        return int(text)
    except ValueError:
        return float(text)
