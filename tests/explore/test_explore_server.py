"""The server answers its own page on this machine only."""

import asyncio
import sys
from types import SimpleNamespace

import pytest

from whence.cli.app import app as command_line
from whence.errors import MissingExtra, WhenceError
from whence.explore import server
from whence.explore.server import HOST, LocalRequests, bind


def respond(**headers):
    """The status and headers of a response behind the middleware."""
    messages = []

    async def page(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        messages.append(message)

    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(LocalRequests(page)({"type": "http", "headers": encoded}, None, send))
    return messages[0]["status"], dict(messages[0]["headers"])


def test_other_hosts_and_other_pages_are_refused():
    assert respond(host="127.0.0.1:7860")[0] == respond(host="localhost:7860", origin="http://localhost:7860")[0] == 200
    for headers in (
        {"host": "evil.example:7860"},  # DNS rebinding
        {"host": "127.0.0.1:7860", "origin": "http://evil.example"},
        {"host": "127.0.0.1:7860", "origin": "http://127.0.0.1:8000"},
        {"host": "127.0.0.1:7860", "origin": "null"},
        {},
    ):
        assert respond(**headers)[0] == 403, headers


def test_the_browser_may_load_from_the_server_alone():
    policy = respond(host="localhost")[1][b"content-security-policy"].decode()
    assert "default-src 'self'" in policy and "http" not in policy and "*" not in policy


def test_a_port_in_use_is_an_error_with_a_remedy():
    taken = bind(0)
    taken.listen()
    try:
        port = taken.getsockname()[1]
        assert taken.getsockname()[0] == HOST == "127.0.0.1"
        with pytest.raises(WhenceError, match=rf"--port got {port}.*--port 0"):
            bind(port)
    finally:
        taken.close()


def test_the_command_passes_its_options(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(server, "serve", lambda *args, **options: calls.append((args, options)))
    command_line(["explore", "--port", "0", "--no-browser", "--results", str(tmp_path)], standalone_mode=False)
    assert calls == [((0,), {"open_browser": False, "results": tmp_path})]


def test_ctrl_c_ends_it_without_a_word_about_resuming(monkeypatch, tmp_path, capsys):
    def run(sockets):
        sockets[0].close()
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "_make_server", lambda results: SimpleNamespace(run=run))
    server.serve(0, open_browser=False, results=tmp_path)
    assert "Ctrl+C stops it" in capsys.readouterr().out


def test_without_gradio_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(MissingExtra, match=r"whence explore needs gradio.*whence\[explore\]"):
        server.build_server(tmp_path)
