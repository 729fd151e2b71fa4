"""Answers over an OpenAI-compatible endpoint, from a server in a thread: right, slow, broken and changing ones."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from whence.errors import WhenceError
from whence.probe import measurement, run_folder
from whence.probe.endpoint import Endpoint
from whence.probe.identity import describe_identity
from whence.probe.plan import Plan, TaskSpec

PLAN = Plan(
    "served", (TaskSpec("key-value", 2, 2, {"pairs": 2}),), ("generation",), items_per_record=1, endpoint="http://x/v1"
)
KEY = "sk-not-to-be-written-down"


class Server:
    """It finds the value that is asked for, unless it is told to do something else first."""

    def __init__(self):
        self.requests, self.before, self.model, self.fingerprint = [], [], "served-2026", "fp_1"
        self.release = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append((self.path, dict(self.headers), body))
                todo = outer.before.pop(0) if outer.before else None
                if callable(todo):
                    return todo(self)
                return outer.answer(self, body)

            def log_message(self, *message):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, handler, body):
        chat = handler.path.endswith("/chat/completions")
        text = body["messages"][0]["content"] if chat else body["prompt"]
        key = text.rsplit('Key: "', 1)[-1].split('"')[0]
        value = text.split(f'"{key}": "')[1].split('"')[0] if f'"{key}": "' in text else "nothing"
        choice = {"message": {"role": "assistant", "content": value}} if chat else {"text": value}
        reply = {
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": [choice | {"finish_reason": "stop"}],
        }
        send(200, json.dumps(reply))(handler)


def send(code, text, **headers):
    def todo(handler):
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(text.encode())

    return todo


@pytest.fixture
def server():
    instance = Server()
    yield instance
    instance.release.set()
    instance.http.shutdown()
    instance.http.server_close()


@pytest.fixture
def endpoint(server):
    waited = []
    instance = Endpoint("asked-for", server.url, timeout=5.0, workers=2, sleep=waited.append)
    instance.__dict__["waited"] = waited
    return instance


@pytest.mark.parametrize("chat", [False, True])
def test_answers_are_recorded_with_what_the_server_says_of_itself(server, tmp_path, monkeypatch, chat):
    monkeypatch.setenv("SOME_KEY", KEY)
    lm = Endpoint("asked-for", server.url, chat=chat, key_variable="SOME_KEY")
    folder, result = measurement.measure(lm, PLAN, tmp_path)
    rows = [row for record in result for row in record["rows"]]
    assert {(row["served_as"], row["fingerprint"], row["finish"]) for row in rows} == {("served-2026", "fp_1", "stop")}
    correct = {record["condition"]: record["rows"][0]["generated_correct"] for record in result}
    assert correct == {0: True, 1: True, "closed book": False, "oracle": True}
    paths = {path for path, _, _ in server.requests}
    assert paths == {"/v1/chat/completions" if chat else "/v1/completions"}
    assert all(headers["Authorization"] == f"Bearer {KEY}" for _, headers, _ in server.requests)
    assert all(body["model"] == "asked-for" and body["temperature"] == 0 for _, _, body in server.requests)
    assert not any(KEY in path.read_text() for path in folder.iterdir())
    identity = run_folder.load_plan(folder)[0].identity
    assert identity["verifiable"] is False and identity["url"] == server.url and identity["fingerprint"] == "fp_1"
    assert describe_identity(identity) == f"served-2026 at {server.url}, fingerprint fp_1; not verifiable"
    assert "endpoint" in run_folder.load_plan(folder)[1]["model"]["capture_error"]


def hang(handler):
    handler.rfile.read(1)  # until the other side has given up


@pytest.mark.parametrize(
    "trouble, waits",
    [
        (send(500, "oh"), [1.0]),
        (send(429, "slow down", Retry_After="7"), [7.0]),
        (send(503, "busy", Retry_After="9999"), [60.0]),
        (send(200, "<html>"), [1.0]),
        (send(200, '{"choices": []}'), [1.0]),
        (send(200, '{"choices": [{"text": 3}]}'), [1.0]),
        (hang, [1.0]),
        (lambda handler: handler.connection.close(), [1.0]),
    ],
)
def test_a_request_that_fails_is_tried_again(server, trouble, waits):
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        lm.__dict__["timeout"] = 60.0  # no other answer is late

    lm = Endpoint("m", server.url, timeout=0.3 if trouble is hang else 60.0, sleep=sleep)
    server.before = [trouble]
    assert lm.identity()["served_as"] == "served-2026" and waited == waits


def test_waits_grow_and_end(server, endpoint):
    server.before = [send(500, "oh")] * 9
    with pytest.raises(WhenceError, match=r"HTTP 500 from .*/v1/completions in 5 attempts.*finished records are kept"):
        endpoint.identity()
    assert endpoint.__dict__["waited"] == [1.0, 2.0, 4.0, 8.0] and len(server.requests) == 5
    server.before = []
    nobody = Endpoint("m", "http://127.0.0.1:9/v1", sleep=lambda seconds: None)
    with pytest.raises(WhenceError, match="ConnectionRefusedError"):
        nobody.identity()


@pytest.mark.parametrize(
    "trouble, message",
    [
        (send(401, "who are you"), "HTTP 401 .*who are you.*environment variable OPENAI_API_KEY"),
        (send(404, "no"), "HTTP 404.*or pass --chat"),
        (send(400, "max_tokens"), "HTTP 400.*max_tokens"),
        (send(302, "", Location="http://127.0.0.1:9/elsewhere"), "HTTP 302.*give the address itself"),
    ],
)
def test_a_request_that_is_refused_is_not_tried_again(server, endpoint, trouble, message):
    server.before = [trouble]
    with pytest.raises(WhenceError, match=message):
        endpoint.identity()
    assert len(server.requests) == 1


def test_a_stopped_probe_resumes_with_the_missing_records(server, endpoint, tmp_path):
    server.before = [None, None, None, *[send(500, "oh")] * 50]  # the first request asks who answers
    with pytest.raises(WhenceError, match="HTTP 500"):
        measurement.measure(endpoint, PLAN, tmp_path)
    [folder] = tmp_path.iterdir()
    kept_before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert len(kept_before) == 3  # the plan and two records
    server.before, server.requests = [], []
    again, result = measurement.measure(endpoint, PLAN, tmp_path)
    assert again == folder and len(result) == 8 and len(server.requests) == 1 + 6
    assert all((folder / name).stat().st_mtime_ns == when for name, when in kept_before.items())


def test_a_killed_probe_resumes_with_the_same_command(server, tmp_path, whence_here):
    arguments = [
        "probe",
        "served",
        "--endpoint",
        server.url,
        "--task",
        "key-value",
        "--items",
        "9",
        "--out",
        str(tmp_path),
    ]

    def hold(handler):
        server.release.wait(60)

    server.before = [None] * 10 + [hold] * 30
    child = subprocess.Popen([sys.executable, "-c", "from whence.cli import main; main()", *arguments, "--only", "measure"],
                             env=os.environ, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        until = time.monotonic() + 60
        while len(server.requests) < 11 and time.monotonic() < until and child.poll() is None:
            time.sleep(0.05)
        os.kill(child.pid, signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
    server.release.set()
    [folder] = tmp_path.iterdir()
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    assert len(before) >= 2 and not list(folder.glob("report*"))
    server.before = []
    done = whence_here(*arguments)
    assert done.returncode == 0 and "report:" in done.stdout and "curves only, no explanations" in done.stderr
    assert [folder] == list(tmp_path.iterdir())
    assert "answers come over an endpoint" in (folder / "report.html").read_text()
    assert all((folder / name).stat().st_mtime_ns == when for name, when in before.items())


def test_another_model_behind_the_same_address_is_refused(server, endpoint, tmp_path):
    measurement.measure(endpoint, PLAN, tmp_path)
    server.model = "served-2027"
    measurement.measure(endpoint, PLAN, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    server.before = [
        None,
        lambda handler: send(200, json.dumps({"model": "third", "choices": [{"text": ""}]}))(handler),
    ]
    server.fingerprint = "fp_2"
    with pytest.raises(WhenceError, match=r"served_as 'third' after 'served-2027'.*one model"):
        measurement.measure(endpoint, PLAN, tmp_path)


@pytest.mark.parametrize(
    "url, message",
    [
        ("localhost:8000", "http or https"),
        ("ftp://x/v1", "http or https"),
        ("http://me:secret@x/v1", "environment variable"),
    ],
)
def test_bad_addresses_are_refused(url, message):
    with pytest.raises(WhenceError, match=message) as refused:
        Endpoint("m", url)
    assert "secret" not in str(refused.value)


def test_only_generation_comes_over_an_endpoint(whence_here, tmp_path):
    command = ("probe", "m", "--endpoint", "http://127.0.0.1:9/v1", "--out", tmp_path)
    for options, message in (
        (("--score", "likelihood"), "--score generation alone"),
        (("--layers", "1"), "answers only"),
    ):
        done = whence_here(*command, *options)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
