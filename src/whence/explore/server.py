"""The server of ``whence explore``: on this machine only, without requests to any other.

Browsers are told to load nothing from elsewhere, and requests that another web page sends are refused.
"""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from whence.errors import require_package, usage_error

HOST = "127.0.0.1"
HOST_NAMES = (HOST, "localhost")
#: Gradio's page has inline scripts and styles; blobs and data are its own downloads and images
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' blob: data:; frame-src 'self'; "
    "frame-ancestors 'self'; form-action 'self'; base-uri 'self'"
)


class LocalRequests:
    """Middleware that refuses requests for other hosts and from other pages, and sets the security policy."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        own = headers.get("host", "")
        origin = headers.get("origin")
        if _host_name(own) not in HOST_NAMES or (origin is not None and urlsplit(origin).netloc != own):
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"whence explore answers requests of its own page only."})
            return

        async def send_with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", []),
                    (b"content-security-policy", POLICY.encode()),
                    (b"referrer-policy", b"no-referrer"),
                ]
            await send(message)

        await self.app(scope, receive, send_with_policy)


def _host_name(host: str) -> str:
    return urlsplit(f"//{host}").hostname or ""


def build_server(results: Path) -> Any:
    """The ASGI application with all tabs."""
    gradio = require_package("gradio", "whence explore", "explore")
    from fastapi import FastAPI

    from whence.explore.application import STYLE, build_application, build_theme

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(LocalRequests)
    return gradio.mount_gradio_app(
        app, build_application(results), path="/", server_name=HOST, footer_links=[], ssr_mode=False, mcp_server=False, pwa=False,
        enable_monitoring=False, theme=build_theme(), head=f"<style>{STYLE.read_text('utf-8')}</style>",  # Gradio drops container queries from css=
    )  # fmt: skip


def bind(port: int) -> socket.socket:
    """A socket on this machine's own address. Port 0 chooses a free one."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((HOST, port))
    except OSError as error:
        bound.close()
        remedy = "pass another --port, or --port 0 for a free one"
        raise usage_error("--port", str(port), f"it cannot be opened ({error.strerror})", remedy) from error
    return bound


def serve(port: int, *, open_browser: bool, results: Path) -> None:
    """Serve until interrupted."""
    bound = bind(port)
    address = f"http://{HOST}:{bound.getsockname()[1]}"
    server = _make_server(results)
    print(f"whence explore: {address} (Ctrl+C stops it)", flush=True)
    if open_browser:
        threading.Timer(1.0, webbrowser.open, [address]).start()
    with suppress(KeyboardInterrupt):  # Ctrl+C ends it as announced; there is nothing to resume
        server.run(sockets=[bound])


@contextmanager
def running(results: Path) -> Iterator[str]:
    """The address of a server that runs in a thread inside the block; for tests and screenshots."""
    bound = bind(0)
    server = _make_server(results)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{bound.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
        bound.close()


def _make_server(results: Path) -> Any:
    app = build_server(results)  # names the extra if it is missing
    import uvicorn

    return uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
