"""A model behind an OpenAI-compatible endpoint, of which only generated answers are available.

Only generation is scored, because the interface has no likelihoods, attention or hidden states. The model behind it cannot
be verified: the identity is what the server reports, and each answer is recorded with the reported model name and
fingerprint.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from whence.errors import WhenceError, usage_error
from whence.probe.tasks.task import Prompt

COMMAND = "whence probe --endpoint"
#: HTTP statuses that are retried: too many requests, a timeout, an error of the server or of a proxy
RETRY_STATUSES = (408, 409, 425, 429, 500, 502, 503, 504, 529)
LONGEST_WAIT = 60.0
#: tokens of an answer: a value has at most as many tokens as characters, and a few words may come before it
LONGEST_ANSWER, ROOM = 100, 16


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects are not followed, because they would send the API key to another address."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server that generates answers.

    Args:
        name: the model's id on the server.
        url: up to and including the version, such as ``http://localhost:8000/v1``.
        chat: ask through ``/chat/completions``; through ``/completions`` with raw text otherwise.
        key_variable: the environment variable that holds the API key. The key is never recorded.
        timeout: of one request, in seconds.
        attempts: how often a request is tried before the probe stops.
        workers: requests at the same time.
        sleep: waits between two attempts; tests give one that does not wait.
    """

    name: str
    url: str
    chat: bool = False
    key_variable: str = "OPENAI_API_KEY"
    timeout: float = 120.0
    attempts: int = 5
    workers: int = 4
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise usage_error(
                COMMAND, repr(self.url), "it is an http or https address", "pass http://localhost:8000/v1"
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise usage_error(
                COMMAND,
                "an address with a user, a password or a query",
                "the address is written into every record",
                f"put the key into the environment variable {self.key_variable}",
            )
        object.__setattr__(self, "url", self.url.rstrip("/"))

    @property
    def about(self) -> dict[str, Any]:
        """For the plan's file and the page."""
        return {"type": "endpoint", "endpoint": self.url, "chat": self.chat, "layers": 0, "parameters": 0}

    @property
    def capture_error(self) -> str:
        """Why only the curves are measured."""
        return "answers come over an endpoint, which shows no likelihoods, attention or hidden states"

    @property
    def path(self) -> str:
        return "/chat/completions" if self.chat else "/completions"

    def identity(self) -> dict[str, Any]:
        """The names that the server reports in answer to one short request. None of them can be verified."""
        answer = self._answer("Hello", 1, None)
        return {
            "kind": "endpoint",
            "verifiable": False,
            "url": self.url,
            "path": self.path,
            "model": self.name,
            "served_as": answer["served_as"],
            "fingerprint": answer["fingerprint"],
            "generation": {"temperature": 0, "longest_answer": LONGEST_ANSWER, "room": ROOM},
        }

    def generate_answers(
        self, prompts: Sequence[Prompt], metric: str, expected: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """The generated answers with the names that the server reports. A change of name is an error."""
        longest = LONGEST_ANSWER
        if metric == "value":
            longest = max(longest, ROOM + max(len(prompt.answer) for prompt in prompts))
        stop = None if self.chat or metric != "subspan" else "\n"

        def request_answer(prompt: Prompt) -> dict[str, Any]:
            answer = self._answer(prompt.text, longest, stop)
            for name in ("served_as", "fingerprint"):
                if answer[name] != expected[name]:
                    raise usage_error(
                        COMMAND,
                        f"an answer with {name} {answer[name]!r} after {expected[name]!r}",
                        "a folder holds the answers of one model",
                        "run the command again; the other model gets a folder of its own",
                    )
            return answer

        pool = ThreadPoolExecutor(max(1, self.workers))
        try:
            return list(pool.map(request_answer, prompts))
        finally:
            pool.shutdown(cancel_futures=True)

    def _answer(self, text: str, longest: int, stop: str | None) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.name, "max_tokens": longest, "temperature": 0}
        if self.chat:
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        if stop:
            body["stop"] = [stop]
        wait, last = 1.0, ""
        for attempt in range(1, self.attempts + 1):
            try:
                return self._read(self._post(body))
            except _RetryableError as error:
                last = str(error)
                if attempt < self.attempts:
                    self.sleep(min(LONGEST_WAIT, error.after if error.after is not None else wait))
                    wait *= 2
        raise usage_error(
            COMMAND,
            f"{last} from {self.url}{self.path} in {self.attempts} attempts",
            "the server must answer each request",
            "run the command again later; finished records are kept",
        )

    def _post(self, body: dict[str, Any]) -> bytes:
        headers = {"Content-Type": "application/json", "User-Agent": "whence"}
        if key := os.environ.get(self.key_variable):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(self.url + self.path, json.dumps(body).encode(), headers, method="POST")
        try:
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=self.timeout) as response:
                return response.read()
        except urllib.error.HTTPError as error:
            if error.code in RETRY_STATUSES:
                raise _RetryableError(f"HTTP {error.code}", _seconds(error.headers.get("Retry-After"))) from None
            raise self._rejected_error(error) from None
        except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise _RetryableError(f"no answer ({type(reason).__name__}: {reason})") from None

    def _rejected_error(self, error: urllib.error.HTTPError) -> WhenceError:
        detail = " ".join(error.read(2000).decode("utf-8", "replace").split())[:200]
        remedies = {
            401: f"put the key into the environment variable {self.key_variable}",
            403: f"put a key with access into the environment variable {self.key_variable}",
            404: "check the address and the model's id" + ("" if self.chat else ", or pass --chat"),
        }
        moved = "give the address itself" if 300 <= error.code < 400 else "correct the request"
        return usage_error(
            COMMAND,
            f"HTTP {error.code} from {self.url}{self.path}" + (f": {detail}" if detail else ""),
            "the server accepts the request",
            remedies.get(error.code, moved),
        )

    def _read(self, raw: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(raw)
            choice = answer["choices"][0]
            text = choice["message"]["content"] if self.chat else choice["text"]
            if text is not None and not isinstance(text, str):
                raise TypeError
        except (ValueError, KeyError, IndexError, TypeError):
            raise _RetryableError("an answer that is not a completion in JSON") from None
        return {
            "text": text or "",
            "finish": choice.get("finish_reason"),
            "served_as": answer.get("model"),
            "fingerprint": answer.get("system_fingerprint"),
        }


class _RetryableError(Exception):
    """A failure that is retried; ``after`` is the waiting time that the server asks for."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


def _seconds(text: str | None) -> float | None:
    """The seconds of a Retry-After header; a date there counts as none.

    >>> _seconds("2"), _seconds("Wed, 21 Oct 2015 07:28:00 GMT"), _seconds(None)
    (2.0, None, None)
    """
    try:
        return max(0.0, float(text)) if text is not None else None
    except ValueError:
        return None
