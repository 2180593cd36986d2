"""Notices of run control: what a webhook, a log book and a mail server receive, and what is done where one is down."""

from __future__ import annotations

import email
import email.policy
import http.server
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from conftest import ROOT, free_port
from control_service import ControlService, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECRET = "a-secret-of-the-laboratory"


class Post(NamedTuple):
    """Request that a receiver got."""

    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Returns the body as JSON."""
        return json.loads(self.body)

    def form(self) -> dict[str, str]:
        """Returns the fields of a form, as a parser of another project reads them."""
        head = f"Content-Type: {self.headers['content-type']}\r\n\r\n".encode()
        message = email.message_from_bytes(head + self.body, policy=email.policy.HTTP)
        # RFC 7578, section 5.1.2: fields are in UTF-8.
        return {
            part.get_param("name", header="content-disposition"): part.get_payload(decode=True).decode()
            for part in message.iter_parts()
        }


class Receiver:
    """HTTP server that keeps what is posted to it."""

    def __init__(self, port: int = 0) -> None:
        self.posts: list[Post] = []
        # Status codes of the next answers; then 200.
        self.answers: list[int] = []
        self.location = "/Shift/12"
        # Answers are held back until this is set.
        self.may_answer = threading.Event()
        self.may_answer.set()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.posts.append(Post(self.path, headers, body))
                receiver.may_answer.wait(60)
                self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
                self.send_header("location", receiver.location)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Ends the server."""
        self.may_answer.set()
        self.server.shutdown()
        self.server.server_close()

    def wait_for(self, count: int) -> list[Post]:
        """Returns the first posts, once there are so many."""
        return wait_until(lambda: self.posts[:count] if len(self.posts) >= count else None, f"post {count}")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Receiver of posts."""
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def start(program: Path, tmp_path: Path) -> Iterator[Callable[..., ControlService]]:
    """Function that starts a service with a table `[control]`."""
    services = []

    def begin(control: str, **environment: str) -> ControlService:
        services.append(ControlService(program, tmp_path, control, environment))
        return services[-1]

    yield begin
    for service in services:
        service.end()


def secret_file(folder: Path) -> Path:
    """Returns a file of a secret that its owner alone can read."""
    path = folder / "secret"
    path.touch(0o600)
    path.write_text(SECRET + "\n")
    return path


def example(heading: str, table: str) -> str:
    """Returns the example of a table of the topology under a heading of the document."""
    page = (ROOT / "docs" / "alarms.md").read_text()
    section = re.split(rf"(?m)^##+ {heading}$", page)[1]
    return next(block for block in re.findall(r"```toml\n(.*?)```", section, re.DOTALL) if f"[{table}" in block)


def adapted(text: str, url: str, secret: Path) -> str:
    """Returns an example with another host and another file of the secret."""
    text = re.sub(r'url = "https://[\w.]+', f'url = "{url}', text)
    return re.sub(r'_file = "[^"]*"', f'_file = "{secret}"', text)


def end_node(service: ControlService, node: str) -> None:
    """Ends the process of a node, as a crash does."""
    pid = next(process["pid"] for process in service.status()["processes"] if process["node"] == node)
    os.kill(pid, signal.SIGKILL)


def destination(service: ControlService, name: str) -> dict[str, Any]:
    """Returns a destination, as the status shows it."""
    return next(view for view in service.status()["destinations"] if view["name"] == name)


def undelivered(service: ControlService) -> list[str]:
    """Returns the messages that a destination takes nothing."""
    texts = [message["text"] for message in service.status()["messages"]]
    return [text for text in texts if text.startswith("alarm: ") and "takes no notices" in text]


def test_a_log_book_gets_start_stop_and_flag_of_a_run_each_once(
    receiver: Receiver, start: Callable[..., ControlService]
) -> None:
    # Answers that a later attempt may change: the first post comes three times.
    receiver.answers = [503, 429]
    service = start(f'logbook = "{receiver.url}/log"')
    service.arm()
    run = service.take_run("first beam")
    service.ask(f"/api/v1/runs/{run}/note", {"text": "a note is no event of its own"})
    service.ask(f"/api/v1/runs/{run}/flag", {"flag": "good", "why": "nice"})
    posts = receiver.wait_for(5)
    assert {post.path for post in posts} == {"/log"}
    assert posts[0].body == posts[1].body == posts[2].body
    events = [post.json() for post in posts[2:]]
    assert [event["event"] for event in events] == ["start", "stop", "flag"]
    assert [event["run"]["state"] for event in events] == ["running", "complete", "complete"]
    assert events[0]["text"] == f"run {run} (physics) has begun: first beam"
    assert events[1]["text"].startswith(f"run {run} is complete: ")
    assert events[2]["text"] == f"run {run} is flagged good by configure: nice"
    assert (events[2]["experiment"], events[2]["run"]["flag"]["why"]) == ("lab", "nice")
    # Another service has no news of the run.
    service.process.kill()
    service.process.wait()
    service.begin()
    service.wait_for(lambda status: status["state"] == "armed", "the nodes")
    assert destination(service, "logbook")["waiting"] == 0
    assert len(receiver.posts) == 5


def test_an_elog_gets_its_form_and_what_it_refuses_is_an_alarm(
    receiver: Receiver, start: Callable[..., ControlService], tmp_path: Path
) -> None:
    receiver.answers = [302, 302, 200]
    table = adapted(example("ELOG", "control.logbook"), receiver.url, secret_file(tmp_path))
    service = start(f"alarms = {{ hold = '1s' }}\n{table}")
    service.arm()
    run = service.take_run('beam "2"; größer')
    posts = receiver.wait_for(2)
    assert posts[0].path == "/Shift/"
    fields = posts[0].form()
    assert (fields["cmd"], fields["exp"], fields["upwd"]) == ("Submit", "Shift", SECRET)
    assert fields["Subject"] == f'run {run} (physics) has begun: beam "2"; größer'
    assert f"runs/run-{run:06}" in posts[1].form()["Text"]
    assert wait_until(lambda: destination(service, "logbook")["sent"] == 2, "the second post")
    # An ELOG that misses an attribute shows its form again.
    service.ask(f"/api/v1/runs/{run}/flag", {"flag": "bad", "why": ""})
    alarm = "not-delivered:logbook"
    status = service.wait_for(lambda status: [one for one in status["alarms"] if one["id"] == alarm], "the alarm")
    assert "in place of a redirect" in next(one["text"] for one in status["alarms"] if one["id"] == alarm)
    assert destination(service, "logbook")["left_out"] == 1
    # The next one is taken, and the alarm is over.
    receiver.answers = [302]
    service.ask(f"/api/v1/runs/{run}/flag", {"flag": "good", "why": ""})
    service.wait_for(
        lambda status: [one for one in status["alarms"] if one["id"] == alarm and not one["is_active"]], "its end"
    )


def test_a_scicat_gets_a_dataset(receiver: Receiver, start: Callable[..., ControlService], tmp_path: Path) -> None:
    service = start(adapted(example("SciCat", "control.logbook"), receiver.url, secret_file(tmp_path)))
    service.arm()
    run = service.take_run("first beam")
    (post,) = receiver.wait_for(1)
    dataset = post.json()
    assert post.path == "/api/v3/datasets"
    assert post.headers["authorization"] == f"Bearer {SECRET}"
    assert (dataset["datasetName"], dataset["type"]) == (f"lab run {run}", "raw")
    assert dataset["size"] > 0
    assert dataset["scientificMetadata"]["events"] > 0
    assert dataset["sourceFolder"].endswith(f"run-{run:06}")


@pytest.mark.parametrize("product", ["ntfy", "Gotify"])
def test_a_telephone_gets_alarms(
    product: str, receiver: Receiver, start: Callable[..., ControlService], tmp_path: Path
) -> None:
    section = (ROOT / "docs" / "alarms.md").read_text().split("### Alarms to a telephone")[1]
    text = section.split(f"[{product}]")[1].split("```toml\n")[1].split("```")[0]
    service = start(adapted(text, receiver.url, secret_file(tmp_path)))
    service.arm()
    end_node(service, "adc-1")
    (post,) = receiver.wait_for(1)
    message = post.json()
    assert (message["title"], message["message"]) == ("lab", "alarm: node adc-1 is not connected to this service")
    assert isinstance(message["priority"], int)
    secrets = {"ntfy": ("authorization", f"Bearer {SECRET}"), "Gotify": ("x-gotify-key", SECRET)}
    name, value = secrets[product]
    assert post.headers[name] == value
    if product == "ntfy":
        assert message["tags"] == ["major"]


def test_a_server_that_does_not_answer_delays_nothing_and_is_reported_once(
    receiver: Receiver, start: Callable[..., ControlService]
) -> None:
    receiver.may_answer.clear()
    service = start(f'webhook = "{receiver.url}"\nlogbook = "http://127.0.0.1:{free_port()}"')
    service.arm()
    service.take_run()
    alarms = {"not-delivered:webhook", "not-delivered:logbook"}
    service.wait_for(lambda status: alarms <= {one["id"] for one in status["alarms"]}, "the alarms")
    reports = wait_until(lambda: texts if len(texts := undelivered(service)) >= 2 else None, "the messages")
    assert [text.split()[1] for text in sorted(reports)] == ["logbook", "webhook"]
    # What waited comes when it answers.
    receiver.may_answer.set()
    wait_until(lambda: destination(service, "webhook")["waiting"] == 0, "what waited")
    assert [post.json()["event"] for post in receiver.posts if post.json()["event"] in ("start", "stop")][-1] == "stop"


class MailServer:
    """SMTP server (aiosmtpd) that keeps what it receives."""

    def __init__(self, port: int, certificate: Path | None) -> None:
        from aiosmtpd.controller import Controller
        from aiosmtpd.smtp import AuthResult, LoginPassword

        self.mails: list[Any] = []
        self.logins: list[tuple[bytes, bytes]] = []

        def log_in(_server: object, _session: object, _envelope: object, _mechanism: str, data: object) -> AuthResult:
            assert isinstance(data, LoginPassword)
            self.logins.append((data.login, data.password))
            return AuthResult(success=data.password == SECRET.encode())

        tls = {}
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
            tls = {"tls_context": context, "require_starttls": True, "auth_required": True, "authenticator": log_in}
        self.controller = Controller(self, hostname="127.0.0.1", port=port, **tls)
        self.controller.start()

    async def handle_DATA(self, _server: object, _session: object, envelope: Any) -> str:  # noqa: N802
        """Keeps a mail."""
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        self.mails.append((envelope.mail_from, envelope.rcpt_tos, mail))
        return "250 OK"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Certificate of 127.0.0.1 that signs itself, with its key beside it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    path = tmp_path / "server.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    command += ["-keyout", str(path.with_suffix(".key")), "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


def mail_table(port: int, secret: Path) -> str:
    """Returns the example of the document, with another server."""
    text = re.sub(r'server = "[^"]*"', f'server = "127.0.0.1:{port}"', example("E-mail", "control.mail"))
    return re.sub(r'password_file = "[^"]*"', f'password_file = "{secret}"', text)


def test_a_mail_tells_of_alarms_once_its_server_is_up(
    start: Callable[..., ControlService], tmp_path: Path, certificate: Path
) -> None:
    port = free_port()
    table = mail_table(port, secret_file(tmp_path)) + "\n[control.alarms]\nhold = '1s'\n"
    service = start(table, SSL_CERT_FILE=str(certificate))
    service.arm()
    # Both at one time are one mail.
    end_node(service, "adc-0")
    end_node(service, "adc-1")
    # The server is down: that is one message, and runs are commanded as before.
    alarm = "not-delivered:mail"
    service.wait_for(lambda status: alarm in {one["id"] for one in status["alarms"]}, "the alarm")
    service.arm()
    service.take_run()
    assert len(undelivered(service)) == 1
    server = MailServer(port, certificate)
    try:
        sender, receivers, mail = wait_until(lambda: server.mails, "a mail")[0]
        assert (sender, receivers) == ("daq@lab.example", ["shift@lab.example", "anna@lab.example"])
        assert re.fullmatch(r"\[lab\] alarm: node adc-\d is not connected .* \(and \d more\)", mail["subject"])
        text = mail.get_content()
        assert "alarm: node adc-0 is not connected" in text
        assert "alarm: node adc-1 is not connected" in text
        # Notices that come while a mail is being attempted are in the next one.
        over = "the alarm is over: node adc-0"
        wait_until(lambda: [mail for *_, mail in server.mails if over in mail.get_content()], "the end of the alarm")
        assert server.logins[0] == (b"daq", SECRET.encode())
        service.wait_for(
            lambda status: [one for one in status["alarms"] if one["id"] == alarm and not one["is_active"]], "its end"
        )
        assert destination(service, "mail")["problem"] == ""
    finally:
        server.controller.stop()


def test_no_password_goes_to_a_server_that_cannot_show_who_it_is(
    start: Callable[..., ControlService], tmp_path: Path, certificate: Path
) -> None:
    port = free_port()
    server = MailServer(port, certificate)
    try:
        service = start(mail_table(port, secret_file(tmp_path)) + "events = ['start']\n")
        service.arm()
        service.take_run()
        problem = wait_until(lambda: destination(service, "mail")["problem"], "the problem")
        assert "certificate" in problem.lower(), problem
        assert (server.mails, server.logins) == ([], [])
    finally:
        server.controller.stop()


def test_a_relay_of_the_laboratory_takes_mail_as_it_is(start: Callable[..., ControlService]) -> None:
    port = free_port()
    server = MailServer(port, None)
    try:
        mail = f"server = '127.0.0.1:{port}', security = 'none', from = 'daq@lab', to = ['x@lab'], events = ['stop']"
        service = start(f"mail = {{ {mail} }}")
        service.arm()
        run = service.take_run()
        _, _, mail = wait_until(lambda: server.mails, "a mail")[0]
        assert mail["subject"].startswith(f"[lab] run {run} is complete: ")
    finally:
        server.controller.stop()


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("webhook = 'mattermost'", "[control.webhook]: url 'mattermost': write http://HOST/…"),
        ("logbook = { url = 'http://x', body = { a = '{run.colour}' } }", "[control.logbook]: body: '{run.colour}'"),
        ("logbook = { url = 'http://x', token_file = 'lab.toml' }", "others can read it"),
        ("mail = { server = 'x', from = 'daq', to = ['a@b'] }", "[control.mail]: from: 'daq'"),
    ],
)
def test_a_destination_that_cannot_be_right_is_named_at_the_start(
    table: str, reason: str, program: Path, tmp_path: Path
) -> None:
    text = f'[control]\n{table}\n[[builder]]\nname = "builder"\nlisten = ["tcp:127.0.0.1:7401"]\n'
    (tmp_path / "lab.toml").write_text(text + '[[source]]\nname = "adc"\nid = "1.0"\n')
    (tmp_path / "lab.toml").chmod(0o644)
    command = [program.with_name("thalweg-control"), "control", "lab.toml", "--listen", "127.0.0.1:0"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert reason in ended.stderr, ended.stderr


def test_a_run_takes_only_so_many_notes(start: Callable[..., ControlService]) -> None:
    service = start("")
    service.arm()
    run = service.take_run()
    path = f"/api/v1/runs/{run}/note"
    assert service.refusal(path, {"text": " "}) == (400, "text: the note is empty")
    assert service.refusal(path, {"text": "x" * 5000}) == (400, "text: 5000 bytes, more than 4096")
    for _ in range(16):
        service.ask(path, {"text": "x" * 4096})
    status, reason = service.refusal(path, {"text": "one more"})
    assert status == 409
    assert reason.startswith(f"run {run} has as many notes as a run can have (100, of 65536 bytes together)")
