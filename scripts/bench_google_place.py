"""What `make bench ENGINE=google` starts: a stub of Google, sidecars as users have them, and who signs tokens."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from mcp_workflows_google_local.identity_tokens import Signer
from mcp_workflows_google_local.store import Store

from scripts.bench_google_load import SHARE, Control
from scripts.bench_place import Place, listens
from scripts.bench_rounds import on_core_0
from tests.support.child_processes import Child, Command, free_port
from tests.support.environments import ROOT
from tests.support.local_engines import BIN

ENGINE: Final = "google"
AUDIENCE: Final = "https://tasks.example.com"
ACCOUNT: Final = "orders@demo.iam.gserviceaccount.com"


@contextmanager
def stub(place: Place) -> Generator[Control]:
    """The stub of Google, with nothing in it."""
    port = free_port()
    control = Control(port)
    argv = [sys.executable, "-m", "scripts.bench_google_stub", str(port)]
    try:
        with place.running(Command(name="google stub", argv=argv, cwd=ROOT, env={}), control.answers):
            yield control
    finally:
        control.close()


class Sidecar:
    """A sidecar that serves HTTP."""

    def __init__(self, child: Child, port: int) -> None:
        self.pid = child.pid
        self.port = port


@contextmanager
def sidecar(
    place: Place,
    store: Path,
    address: str,
    tools: Mapping[str, Mapping[str, Any]],  # Any: YAML values
    *,
    keys_url: str | None = None,
    replicas: int = 1,
) -> Generator[Sidecar]:
    """One in front of the engine at this address; with `keys_url`, workflows can call it."""
    port = free_port()
    inbound = {"audience": AUDIENCE, "accounts": [ACCOUNT], "issuer": keys_url, "keys_url": keys_url}
    engine = {
        "adapter": "google-workflows",
        "location": "us-central1",
        "emulator": address,
        "quota": {"share": SHARE, "replicas": replicas},
        **({"inbound": inbound} if keys_url else {}),
    }
    whole = {name: {"engine": ENGINE, **tool} for name, tool in tools.items()}
    config = store.with_name(f"sidecar-{port}.yaml")
    written = {
        "server": {"name": "bench", "drain": "0s"},
        "store": f"sqlite:///{store}",
        "engines": {ENGINE: engine},
        "tools": whole,
    }
    config.write_text(json.dumps(written))  # JSON is YAML
    argv = on_core_0(str(BIN / "mcp-workflows"), "serve", str(config), "--http", f"127.0.0.1:{port}")
    command = Command(name=f"google sidecar {port}", argv=argv, cwd=ROOT, env={})
    with place.running(command, lambda: listens(port)) as child:
        yield Sidecar(child, port)


class Issuer:
    """Signs tokens for service accounts, as Google does; `url` is where its keys are, and its name."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._signer = Signer(Store(None), self.url)

    def token(self) -> str:
        """One that the sidecars trust."""
        return self._signer.identity_token(AUDIENCE, ACCOUNT)

    @property
    def keys(self) -> bytes:
        """A JSON Web Key Set."""
        return json.dumps(self._signer.keys).encode()


@contextmanager
def issuer() -> Generator[Issuer]:
    """Its keys are served from this process."""
    port = free_port()
    there = Issuer(port)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(there.keys)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name there
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield there
    finally:
        server.shutdown()
        server.server_close()
