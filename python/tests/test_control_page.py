"""Page of run control in a browser: a real service and real nodes, commanded by the buttons of the page."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from conftest import ROOT, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

PAGE = ROOT / "crates" / "thalweg-control" / "page"
SOURCES = ("adc-0", "adc-1", "adc-2")
# Time that anything may take on a busy machine.
PATIENCE_SECONDS = 120
SIZES = {"desk": (1280, 720), "wall": (1920, 1080), "telephone": (390, 844)}


def topology() -> str:
    text = f"""
[run]
directory = "runs"

[control]
experiment = "beamline"

[[builder]]
name = "builder"
listen = ["tcp:127.0.0.1:{free_port()}"]
# Longer than any source is silent on a busy machine: runs are complete.
deadline = "60s"
"""
    devices = dict.fromkeys(SOURCES, 'device = { kind = "model-adc", size = "16KiB" }\nrate = 200.0')
    devices["camera"] = 'device = { kind = "pgm", files = ["images"], rate = 200.0, loop = true }\nrate = 200.0'
    devices["spot"] = 'device = { kind = "fit", of = "camera", fit = "moments" }'
    for index, (name, device) in enumerate(devices.items()):
        text += f'\n[[source]]\nname = "{name}"\nid = "1.{index}"\nlink = "tcp"\n{device}\n'
    return text


def write_images(folder: Path) -> None:
    """Writes the images of a spot that moves to the right."""
    folder.mkdir()
    for frame in range(8):
        rows = [
            bytes(200 if (x - 8 - 5 * frame) ** 2 + (y - 20) ** 2 < 30 else 9 for x in range(64)) for y in range(48)
        ]
        (folder / f"{frame}.pgm").write_bytes(b"P5 64 48 255\n" + b"".join(rows))


class Service:
    """Running `thalweg control`, and a client of its API."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program.with_name("thalweg-control")
        assert self.program.exists(), f"{self.program} does not exist: build it (`make build`)"
        self.folder = folder
        # Processes of the nodes.
        self.pids: dict[str, int] = {}
        self.address = f"127.0.0.1:{free_port()}"
        (folder / "lab.toml").write_text(topology())
        write_images(folder / "images")
        self.start()

    def start(self) -> None:
        """Starts the service, which finds its tokens and the nodes of the one before."""
        command = [self.program, "control", "lab.toml", "--listen", self.address, "--json"]
        with (self.folder / "service.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.folder,
                env=os.environ | {"XDG_STATE_HOME": str(self.folder)},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.folder / "service.log").read_text()
        announced = json.loads(line)
        self.url, self.page = announced["listening"], announced["page"]
        self.token = self.page.split("#token=")[1]

    def kill(self) -> None:
        """Ends the service as a crash does; nodes go on."""
        self.process.kill()
        self.process.wait()

    def ask(self, path: str, body: object = None) -> Any:
        """Returns the answer of the API: a request that changes something has a body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data=data)
        request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return json.load(answer)

    def status(self) -> dict[str, Any]:
        """Returns the status."""
        status = self.ask("/api/v1/status")
        self.pids.update({process["node"]: process["pid"] for process in status["processes"] if process["pid"]})
        return status

    def wait_for(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Returns the first status for which something holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds(status := self.status()):
            assert time.monotonic() < deadline, json.dumps(status, indent=1)
            time.sleep(0.05)
        return status

    def bring_to(self, state: str) -> None:
        """Brings the experiment to `armed` or `running`, from whatever state it is in."""
        paths = {"idle": "configure", "error": "configure", "configured": "arm", "armed": "start", "paused": "resume"}
        if state != "running":
            paths |= {"running": "stop", "paused": "stop"}
        while (status := self.wait_for(lambda status: status["state"] in {state, *paths}))["state"] != state:
            try:
                self.ask(f"/api/v1/commands/{paths[status['state']]}", {})
            except urllib.error.HTTPError as error:
                raise AssertionError(error.read().decode()) from error


@pytest.fixture(scope="module")
def service(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Service of three sources and a builder, which it starts itself."""
    service = Service(program, tmp_path_factory.mktemp("control"))
    yield service
    ended = service.process.poll()
    service.kill()
    # Nodes outlive the service.
    for pid in service.pids.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert ended is None, f"the service ended by itself, with {ended}: {(service.folder / 'service.log').read_text()}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium of this machine."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(service: Service, browser: Any) -> Iterator[Callable[..., Any]]:
    """Function that opens the page; what the browser reports of it, or asks of others, is an error."""
    contexts: list[Any] = []
    complaints: list[str] = []

    def note_request(request: Any) -> None:
        if urlsplit(request.url).netloc != service.address:
            complaints.append(f"a request to {request.url}")

    def open_one(size: str = "desk", scheme: str = "light") -> Any:
        width, height = SIZES[size]
        viewport = {"width": width, "height": height}
        context = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * PATIENCE_SECONDS)
        page.on("request", note_request)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(service.page)
        page.wait_for_selector(f"[data-source={SOURCES[-1]}]")
        assert "token" not in page.url
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert complaints == []


def press(page: Any, name: str) -> None:
    """Presses the button of a command as soon as it can be pressed."""
    page.wait_for_selector(f"[data-name={name}]:not([aria-disabled])")
    page.click(f"[data-name={name}]")


def wait_for_state(page: Any, state: str) -> None:
    playwright.expect(page.locator("#state")).to_have_text(state, timeout=1000 * PATIENCE_SECONDS)


def wait_until(page: Any, script: str, argument: object = None) -> None:
    """Waits until a function of JavaScript returns true: the page's policy forbids `wait_for_function`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not page.evaluate(script, argument):
        assert time.monotonic() < deadline, f"{script}: {page.inner_text('body')}"
        page.wait_for_timeout(50)


def violations(page: Any) -> list[str]:
    """Returns what axe finds wrong with the page."""
    found = axe.Axe().run(page).response["violations"]
    return [f"{rule['id']}: {node['target']}: {node['failureSummary']}" for rule in found for node in rule["nodes"]]


def test_a_shift_is_run_by_the_buttons(service: Service, open_page: Callable[..., Any]) -> None:
    page = open_page()
    wait_for_state(page, "idle")
    press(page, "configure")
    wait_for_state(page, "configured")
    press(page, "arm")
    wait_for_state(page, "armed")
    number = page.inner_text("#next-number")
    page.check("input[value=test]", force=True)
    page.fill(".note-field input", "first <b>light</b>")
    press(page, "start")
    wait_for_state(page, "running")
    assert number in page.inner_text("header")
    run = service.status()["run"]
    assert (f"run {run['number']}", run["kind"], run["note"]) == (number, "test", "first <b>light</b>")
    # A note is text, whatever it looks like.
    assert "first <b>light</b>" in page.inner_text("header")
    press(page, "pause")
    wait_for_state(page, "paused")
    press(page, "resume")
    wait_for_state(page, "running")
    press(page, "step")
    page.fill("dialog [name=label]", "angle 1")
    page.fill("dialog [name=data]", '{"angle": 12.5}')
    page.click("dialog >> text=Set the marker")
    page.wait_for_selector("dialog", state="detached")
    page.wait_for_selector("[data-name=step]:not([aria-busy])")
    press(page, "next")
    playwright.expect(page.locator(".run-number")).to_have_text(f"run {run['number'] + 1}", timeout=60_000)
    assert page.locator(".failure").count() == 0
    press(page, "stop")
    wait_for_state(page, "armed")
    row = f"[data-run='{run['number']}']"
    page.wait_for_selector(f"{row} >> text=complete")
    page.click(f"{row} >> text=Flag")
    page.fill("dialog [name=why]", "a clean run")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{row} >> text=a clean run")
    record = service.ask("/api/v1/runs")["runs"][1]
    assert (record["number"], record["flag"]["flag"]) == (run["number"], "good")


def test_a_button_that_cannot_be_pressed_shows_the_reason_that_the_service_gives(
    service: Service, open_page: Callable[..., Any]
) -> None:
    service.bring_to("armed")
    page = open_page()
    wait_for_state(page, "armed")
    for name, command in service.status()["commands"].items():
        button = page.locator(f"[data-name={name}]")
        assert (button.get_attribute("aria-disabled") is None) == command["legal"], name
        if command["legal"]:
            continue
        button.focus()
        assert command["reason"] in page.inner_text("#hint")
        assert button.get_attribute("title") == command["reason"]
        with pytest.raises(urllib.error.HTTPError) as refused:
            service.ask(f"/api/v1/commands/{name}", {"label": "x"} if name == "step" else {})
        error = json.load(refused.value)["error"]
        assert (refused.value.code, error["reason"]) == (409, command["reason"])


def test_abort_asks_first(service: Service, open_page: Callable[..., Any]) -> None:
    service.bring_to("running")
    page = open_page()
    press(page, "abort")
    page.wait_for_selector("dialog[open]")
    # What is pressed by habit does no harm.
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog", state="detached")
    wait_for_state(page, "running")
    press(page, "abort")
    page.click("dialog >> text=Abort the run")
    playwright.expect(page.locator("#state")).not_to_have_text("running", timeout=1000 * PATIENCE_SECONDS)
    assert service.wait_for(lambda status: status["run"] is None)["last_run"]["state"] != "complete"


def test_a_process_is_restarted_by_its_button(service: Service, open_page: Callable[..., Any]) -> None:
    service.bring_to("running")
    page = open_page()
    button = page.locator(f"[data-process={SOURCES[0]}] button", has_text="restart")
    process = next(one for one in service.status()["processes"] if one["node"] == SOURCES[0])
    reason = process["actions"]["restart"]["reason"]
    assert "it takes part in run" in reason
    playwright.expect(button).to_have_attribute("title", reason, timeout=1000 * PATIENCE_SECONDS)
    service.bring_to("armed")
    playwright.expect(button).not_to_have_attribute("aria-disabled", "true", timeout=1000 * PATIENCE_SECONDS)
    button.click()
    page.click("dialog >> text=Restart the process")
    service.wait_for(
        lambda status: any(
            one["node"] == SOURCES[0] and one["pid"] not in (None, process["pid"]) for one in status["processes"]
        )
    )
    service.wait_for(lambda status: status["state"] == "configured")


def test_a_page_without_a_token_asks_for_one_and_its_role_counts(
    service: Service, open_page: Callable[..., Any]
) -> None:
    service.bring_to("armed")
    tokens = (service.folder / "runs" / ".control" / "tokens.toml").read_text()
    found = re.search(r'role = "watch"\nsecret = "(\w+)"', tokens)
    assert found
    page = open_page()
    page.context.clear_cookies()
    page.reload()
    page.fill("[name=token]", "a guess")
    page.keyboard.press("Enter")
    page.wait_for_selector(".problem >> text=does not know this token")
    assert violations(page) == []
    page.fill("[name=token]", found[1])
    page.keyboard.press("Enter")
    wait_for_state(page, "armed")
    # No script can read the token.
    assert page.evaluate("document.cookie + JSON.stringify(localStorage)") == "{}"
    press(page, "start")
    page.wait_for_selector(".failure >> text=has the role watch, and this needs operate")
    assert service.status()["state"] == "armed"


def test_an_error_stays_until_it_is_dismissed(service: Service, open_page: Callable[..., Any]) -> None:
    service.bring_to("running")
    page = open_page()
    wait_for_state(page, "running")
    answer = {"error": {"code": "failed", "reason": "the builder is <i>busy</i>"}}
    page.route("**/commands/pause", lambda route: route.fulfill(status=409, json=answer))
    press(page, "pause")
    page.wait_for_selector(".failure >> text=the builder is <i>busy</i>")
    before = service.status()["id"]
    service.wait_for(lambda status: status["id"] > before + 10)
    page.click(".failure >> text=Dismiss")
    page.wait_for_selector(".failure", state="detached")


def test_events_of_a_run_are_seen(service: Service, open_page: Callable[..., Any]) -> None:
    service.bring_to("running")
    page = open_page()
    card = page.locator(f"[data-latest={SOURCES[0]}]")
    card.scroll_into_view_if_needed()
    drawn = "(canvas) => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean)"
    wait_until(page, drawn, page.wait_for_selector(f"[data-latest={SOURCES[0]}] canvas"))
    assert "simulated" in card.inner_text()
    image = page.locator("[data-latest=camera]")
    image.scroll_into_view_if_needed()
    wait_until(page, drawn, page.wait_for_selector("[data-latest=camera] canvas.picture"))
    assert re.search("64 . 48 pixels", image.inner_text())
    fit = page.locator("[data-latest=spot]")
    fit.scroll_into_view_if_needed()
    wait_until(page, drawn, page.wait_for_selector("[data-latest=spot] canvas"))
    assert fit.locator("option").count() > 1
    card.scroll_into_view_if_needed()
    card.get_by_text("waterfall").click()
    page.wait_for_selector(f"[data-latest={SOURCES[0]}] canvas.pixels")
    # The event shown is replaced by newer ones.
    shown = card.locator("p").first.inner_text()
    playwright.expect(card.locator("p").first).not_to_have_text(shown, timeout=1000 * PATIENCE_SECONDS)


def test_a_hidden_page_asks_for_nothing(service: Service, open_page: Callable[..., Any]) -> None:
    service.bring_to("running")
    page = open_page()
    page.locator("#latest").scroll_into_view_if_needed()
    page.wait_for_selector(f"[data-latest={SOURCES[0]}] canvas")
    # Browsers without a screen hide no page by themselves.
    hide = """(isHidden) => {
        Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    before = service.status()
    service.wait_for(lambda status: status["id"] > before["id"] + 20)
    page.wait_for_timeout(1)
    assert (requests, page.title()) == ([], "beamline")
    with page.expect_request("**/api/v1/latest/**", timeout=1000 * PATIENCE_SECONDS):
        page.evaluate(hide, False)
    wait_for_state(page, "running")
    page.wait_for_selector(".old-values", state="detached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_size_has_its_words_in_sight(
    service: Service, open_page: Callable[..., Any], size: str, scheme: str
) -> None:
    service.bring_to("running")
    page = open_page(size, scheme)
    wait_for_state(page, "running")
    width, height = SIZES[size]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for place in ("#state", ".run-number", "[data-name=stop]", "[data-name=abort]", "#next-number", "#wrong"):
        box = page.locator(place).bounding_box()
        assert box["y"] + box["height"] <= height, place
    if size != "telephone":
        for place in ("#sources", "#totals", "#ledger"):
            box = page.locator(place).bounding_box()
            assert box["y"] + box["height"] <= height, place
    assert violations(page) == []
    press(page, "abort")
    page.wait_for_selector("dialog[open]")
    assert violations(page) == []


def test_the_keyboard_is_enough(service: Service, open_page: Callable[..., Any]) -> None:
    service.bring_to("armed")
    page = open_page()
    wait_for_state(page, "armed")
    names = []
    for _ in range(40):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            """() => {
                const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
                return [document.activeElement.dataset.name ?? "", outlineStyle, parseFloat(outlineWidth)];
            }"""
        )
        # The buttons of a choice are drawn by the words beside them.
        if focused[0]:
            assert (focused[1], focused[2] >= 2) == ("solid", True), focused
            names.append(focused[0])
    offered = service.status()["commands"]
    assert sorted(names) == sorted(offered)
    page.focus("[data-name=start]")
    page.keyboard.press("Enter")
    wait_for_state(page, "running")
    page.focus("[data-name=abort]")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert page.evaluate("document.activeElement.dataset.name") == "abort"
    page.focus("[data-name=stop]")
    page.keyboard.press("Space")
    wait_for_state(page, "armed")


def test_a_page_that_stalls_harms_nothing_and_then_shows_the_newest(
    service: Service, open_page: Callable[..., Any]
) -> None:
    service.bring_to("running")
    page = open_page()
    wait_for_state(page, "running")
    # A client that never reads.
    silent = socket.create_connection(tuple(service.address.split(":")))
    headers = f"Host: {service.address}\r\nAuthorization: Bearer {service.token}\r\n"
    silent.sendall(f"GET /api/v1/events HTTP/1.1\r\n{headers}\r\n".encode())
    # The page's only thread waits for an answer, which comes when the run has gone on by many statuses.
    before = service.status()

    def answer_late(route: Any) -> None:
        service.wait_for(lambda status: status["id"] > before["id"] + 50)
        route.fulfill(body="")

    page.route("**/late", answer_late)
    page.evaluate(
        """() => {
            const request = new XMLHttpRequest();
            request.open("GET", "/late", false);
            request.send();
        }"""
    )
    after = service.status()
    assert (after["state"], after["run"]["number"]) == ("running", before["run"]["number"])
    assert after["totals"]["events"] > before["totals"]["events"]
    assert after["ledger"]["lost"] == 0
    shown = r"(events) => Number(document.querySelector('#totals .quiet').textContent.replace(/\D/g, '')) >= events"
    wait_until(page, shown, after["totals"]["events"])
    wait_for_state(page, "running")
    silent.close()


def test_contact_that_is_lost_cannot_be_overlooked_and_is_found_again(
    service: Service, open_page: Callable[..., Any]
) -> None:
    service.bring_to("running")
    run = service.status()["run"]["number"]
    page = open_page()
    wait_for_state(page, "running")
    service.kill()
    wait_for_state(page, "no contact")
    playwright.expect(page.locator("#contact")).to_contain_text(re.compile(r"for [1-9]\d* s"), timeout=60_000)
    assert page.locator(".old-values").count() == 1
    assert page.title().startswith("no contact")
    assert page.locator("[data-name]:not([aria-disabled])").count() == 0
    assert "no contact" in page.get_attribute("[data-name=stop]", "title")
    assert violations(page) == []
    service.start()
    wait_for_state(page, "running")
    page.wait_for_selector("#contact", state="detached")
    assert page.locator(".old-values").count() == 0
    assert service.status()["run"]["number"] == run


def test_the_broken_source_comes_first(service: Service, open_page: Callable[..., Any]) -> None:
    service.bring_to("running")
    page = open_page("telephone", "dark")
    wait_for_state(page, "running")
    broken = SOURCES[1]
    service.status()
    os.kill(service.pids[broken], signal.SIGKILL)
    page.wait_for_selector(f"#wrong .trouble.major .subject >> text={broken}")
    first = page.locator("[data-source]").first
    playwright.expect(first).to_have_attribute("data-source", broken, timeout=1000 * PATIENCE_SECONDS)
    assert first.locator(".mark").first.inner_text().strip() == "major"
    box = page.locator("#wrong .trouble").first.bounding_box()
    assert box["y"] + box["height"] <= SIZES["telephone"][1]
    assert violations(page) == []


def test_the_types_of_the_page_are_those_of_the_service(service: Service) -> None:
    schemas = service.ask("/openapi.json")["components"]["schemas"]
    text = (PAGE / "src" / "api.ts").read_text()
    of_service = {"Run": "RunView", "Ledger": "LedgerView", "Source": "SourceView", "Builder": "BuilderView"}
    of_service |= {"MissingSource": "MissingView", "IncompleteEvent": "IncompleteView", "Clock": "ClockView"}
    of_service |= {"Alarm": "AlarmView", "Message": "MessageView", "Process": "ProcessView"}
    of_service |= {name: name for name in ("Status", "Legality", "Totals", "Draining", "Flag", "Note", "RunRecord")}
    of_service |= {"HistoryRecord": "Columns"}

    def fields_of(schema: dict[str, Any]) -> set[str]:
        fields = set(schema.get("properties", {}))
        for part in schema.get("allOf", []):
            name = part.get("$ref", "").rpartition("/")[2]
            fields |= fields_of(schemas[name] if name else part)
        return fields

    for name, schema in of_service.items():
        found = re.search(rf"export interface {name}(?: extends (\w+))? {{\n(.*?)\n}}", text, re.DOTALL)
        assert found, name
        fields = set(re.findall(r"^  (\w+)\??:", found[2], re.MULTILINE))
        if found[1]:
            fields |= fields_of(schemas[of_service[found[1]]])
        assert fields == fields_of(schemas[schema]), name
