"""Client of a run control service (`thalweg control`): status, commands, changes, latest fragments.

    >>> from thalweg.control import Control
    >>> control = Control()                      # this user's service, as `thalweg ctl` finds it
    >>> control.status()["state"]
    'armed'
    >>> control.command("start", note="first light")["state"]
    'running'
    >>> control.wait_until(lambda status: status["totals"]["events"] >= 1000)["state"]
    'running'
    >>> control.command("start")
    Traceback (most recent call last):
    thalweg.control.ControlError: cannot start: the experiment is running: a run is under way: stop it first

Answers are dictionaries, with the keys of the service's description at `/openapi.json`. Times are Unix times in
seconds. Each method may be called from any thread.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Change", "Control", "ControlError", "ServiceLostError"]

# Time in seconds until a request is given up: arming examines all hosts.
REQUEST_SECONDS = 60.0
# Time in seconds without a word of the service after which changes are given up. It sends a comment every 15 s.
SILENCE_SECONDS = 20.0
# Longest answer, and longest line of the changes, in bytes.
MAX_ANSWER_BYTES = 64 << 20


class ControlError(RuntimeError):
    """Refusal of a request. `str` of it is the reason, the same as on the page and in `thalweg ctl`.

    `code` is the kind of the error: `not-legal`, `failed`, `bad-request`, `no-access`, `not-found`, `no-answer`,
    `too-large`, `too-many`, `too-many-clients`.
    """

    def __init__(self, code: str, reason: str) -> None:
        """Creates an error of this kind, with a reason."""
        super().__init__(reason)
        self.code = code


class ServiceLostError(ControlError):
    """The service cannot be reached, or the connection with it ended. The `code` is `no-service`."""

    def __init__(self, reason: str) -> None:
        """Creates an error with a reason."""
        super().__init__("no-service", reason)


class Change(NamedTuple):
    """Change that the service reports."""

    kind: str
    """`status` (the data are the whole status) or `message`."""
    id: str
    """Position in the sequence of messages: with `Control.changes(after=id)` no later message is missed."""
    data: dict[str, Any]
    """The status or the message."""


class Control:
    """Run control service of an experiment."""

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        """Creates a client of the service at `url` (`http://HOST:PORT`), with the secret `token`.

        What is left out is taken from the environment variables THALWEG_CONTROL_URL and THALWEG_CONTROL_TOKEN, or from
        the file that the last service of this user wrote. Raises ValueError if the URL or the token is not known.
        """
        pointer = _pointer()
        url = (url or os.environ.get("THALWEG_CONTROL_URL") or pointer.get("url", "")).rstrip("/")
        if not url:
            path = _pointer_path()
            msg = f"no service is known ({path} is not there): start one with `thalweg control FILE`, or give its URL"
            raise ValueError(msg)
        token = (
            token
            or os.environ.get("THALWEG_CONTROL_TOKEN")
            or (pointer.get("token") if pointer.get("url") == url else None)
        )
        if not token:
            msg = f"no token for {url}: set THALWEG_CONTROL_TOKEN to one of the service's tokens.toml"
            raise ValueError(msg)
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query:
            msg = f"{url}: no address of a service: write http://HOST:PORT"
            raise ValueError(msg)
        self.url = url
        self._is_secure = parts.scheme == "https"
        self._address = (parts.hostname, parts.port)
        self._token = token

    def status(self) -> dict[str, Any]:
        """Returns the status of the experiment."""
        return self._exchange("GET", "/api/v1/status")

    def command(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Gives a command (`configure`, `arm`, `start`, `stop`, `pause`, `resume`, `abort`) and returns the status.

        `start` has the arguments `kind` (`physics` or `test`) and `note`. The command was accepted; its effect may
        follow: see `wait_until`. Raises ControlError with the reason if it is refused.
        """
        answer: dict[str, Any] = self._exchange("POST", f"/api/v1/commands/{_quoted(name)}", arguments)["status"]
        return answer

    def runs(self, limit: int = 50) -> list[dict[str, Any]]:
        """Returns the records of the last runs, the newest first."""
        runs: list[dict[str, Any]] = self._exchange("GET", f"/api/v1/runs?limit={int(limit)}")["runs"]
        return runs

    def note(self, run: int, text: str) -> dict[str, Any]:
        """Adds a note to a run, and returns its record."""
        return self._exchange("POST", f"/api/v1/runs/{int(run)}/note", {"text": text})

    def flag(self, run: int, flag: str, why: str = "") -> dict[str, Any]:
        """Judges a run as `good`, `bad` or `unknown`, and returns its record."""
        return self._exchange("POST", f"/api/v1/runs/{int(run)}/flag", {"flag": flag, "why": why})

    def process(self, action: str, node: str) -> list[dict[str, Any]]:
        """Starts, stops or restarts the process of a node (`start`, `stop`, `restart`), and returns all processes.

        It is under way then: see `wait_until`. Raises ControlError with the reason if it is refused: `restart` is while
        the node takes part in a run.
        """
        path = f"/api/v1/processes/{_quoted(node)}/{_quoted(action)}"
        processes: list[dict[str, Any]] = self._exchange("POST", path, {})["processes"]
        return processes

    def latest(self, source: str, width: int = 1024) -> dict[str, Any] | None:
        """Returns the latest fragment of a source, in at most `width` columns; None if there is none yet.

        Waveforms have the least and the greatest sample of each column. An image has `pixels`, u16 in Base64, between
        its `minimum` (0) and its `maximum` (65535).
        """
        return self._exchange("GET", f"/api/v1/latest/{_quoted(source)}?width={int(width)}") or None

    def changes(self, after: str | None = None) -> Iterator[Change]:
        """Yields the changes of the experiment as they happen: first the status as it is.

        With `after`, the `id` of a former change, messages that were missed since then come first. A reader that is
        slow gets fewer statuses, never older ones. Raises ServiceLostError when the connection ends.
        """
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": after} if after else {})
        connection, answer = self._request("GET", "/api/v1/events", None, headers, SILENCE_SECONDS)
        try:
            for change in _read_changes(answer):
                if change is not None:
                    yield change
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from error
        finally:
            connection.close()
        raise self._lost("it ended the connection")

    def wait_until(self, condition: Callable[[dict[str, Any]], bool], timeout: float = 60.0) -> dict[str, Any]:
        """Waits for a status with this property, and returns it.

        The status as it is counts in any case. Raises TimeoutError if there is none within `timeout` seconds, and
        ServiceLostError if the service is lost.
        """
        deadline = time.monotonic() + timeout
        # A service that answers later than a short `timeout` is not lost.
        connection, answer = self._request("GET", "/api/v1/events", None, {}, REQUEST_SECONDS)
        try:
            for change in _read_changes(answer):
                if change is not None and change.kind == "status" and condition(change.data):
                    return change.data
                if (left := deadline - time.monotonic()) <= 0:
                    raise TimeoutError
                if connection.sock is not None:
                    connection.sock.settimeout(left)
        except TimeoutError:
            status = self.status()
            msg = f"not so after {timeout:g} s: the experiment is {status['state']}: {status['sentence']}"
            raise TimeoutError(msg) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from error
        finally:
            connection.close()
        raise self._lost("it ended the connection")

    def _exchange(self, method: str, path: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
        """Sends a request and returns the answer, which is an object."""
        body = None if content is None else json.dumps(content).encode()
        connection, answer = self._request(method, path, body, {}, REQUEST_SECONDS)
        try:
            return _decode(_read_bounded(answer))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._lost(error) from error
        finally:
            connection.close()

    def _request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Sends a request and returns the connection and the answer, which is a success."""
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        connection = kind(*self._address, timeout=timeout)
        headers = headers | {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            if answer.status == http.client.OK:
                return connection, answer
            refusal = _refusal(answer)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._lost(error) from error
        connection.close()
        raise refusal

    def _lost(self, error: object) -> ServiceLostError:
        return ServiceLostError(f"no answer of a service at {self.url}: {error}; is `thalweg control` running there?")


def _pointer_path() -> Path:
    """Returns the path of the file with the address of this user's last service."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state) / "thalweg/service.json"


def _pointer() -> dict[str, str]:
    """Returns the address and the token in that file; nothing if there is none."""
    try:
        pointer = json.loads(_pointer_path().read_bytes())
    except FileNotFoundError:
        return {}
    return pointer if isinstance(pointer, dict) else {}


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _read_bounded(answer: http.client.HTTPResponse) -> bytes:
    body = answer.read(MAX_ANSWER_BYTES + 1)
    if len(body) > MAX_ANSWER_BYTES:
        msg = f"its answer has more than {MAX_ANSWER_BYTES} bytes"
        raise ValueError(msg)
    return body


def _decode(body: bytes) -> dict[str, Any]:
    """Decodes a JSON object; `null` is an empty one. Raises ValueError if it is none."""
    try:
        content = json.loads(body)
    except RecursionError as error:
        msg = "its answer is nested too deeply"
        raise ValueError(msg) from error
    if not isinstance(content, dict | None):
        msg = "its answer is not an object"
        raise ValueError(msg)
    return content or {}


def _refusal(answer: http.client.HTTPResponse) -> ControlError:
    """Returns the error that an answer contains."""
    try:
        error = _decode(_read_bounded(answer))["error"]
        return ControlError(str(error["code"]), str(error["reason"]))
    except (ValueError, KeyError, TypeError):
        return ControlError("no-answer", f"the service answers {answer.status} {answer.reason}, without a reason")


def _read_changes(answer: http.client.HTTPResponse) -> Iterator[Change | None]:
    """Yields the changes of an answer, and None for its comments (WHATWG HTML, section 9.2.6: event streams).

    The service sends a comment where nothing changes, so that the connection is known to be alive.
    """
    kind, id, data, size = "message", "", "", 0
    while line := answer.readline(MAX_ANSWER_BYTES):
        size += len(line)
        if not line.endswith(b"\n") or size > MAX_ANSWER_BYTES:
            msg = f"a change is cut off, or has more than {MAX_ANSWER_BYTES} bytes"
            raise http.client.HTTPException(msg)
        text = line.decode(errors="replace").rstrip("\r\n")
        field, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            kind = value
        elif field == "id":
            id = value
        elif field == "data":
            data += value
        elif text:
            yield None
        else:
            if data:
                yield _change(kind, id, data)
            kind, data, size = "message", "", 0


def _change(kind: str, id: str, data: str) -> Change:
    try:
        return Change(kind, id, _decode(data.encode()))
    except ValueError as error:
        msg = f"a change cannot be read: {error}"
        raise http.client.HTTPException(msg) from error
