"""API of run control against its own description, by schemathesis, for each role."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from control_service import ControlService

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Number of requests with random data for each operation; those at the limits of the description come as well.
EXAMPLES = 5
# Server-sent events do not end; they are tried elsewhere.
ENDLESS = "/api/v1/events"


@pytest.fixture(scope="module")
def service(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlService]:
    """Service in a run, with a run before it."""
    service = ControlService(program, tmp_path_factory.mktemp("api"))
    try:
        service.arm()
        service.take_run("first beam")
        service.command("start")
        yield service
    finally:
        service.end()


@pytest.mark.parametrize("role", ["none", "node", "watch", "operate", "configure"])
def test_answers_are_as_the_description_says(service: ControlService, role: str, tmp_path: Path) -> None:
    secret = service.secrets.get(role, "a-guess-of-a-secret")
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}/openapi.json", "--no-color"]
    command += ["--header", f"Authorization: Bearer {secret}", "--exclude-path", ENDLESS]
    # What has no right to anything is refused before data are looked at.
    phases = "coverage" if role in ("none", "node") else "coverage,fuzzing"
    command += ["--phases", phases, "--max-examples", str(EXAMPLES), "--generation-deterministic"]
    command += ["--warnings", "off", "--request-timeout", "60"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert service.status()["id"] > 0, "it works on"
