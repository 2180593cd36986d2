"""Figures of run control: promtool's judgement on them, and the dashboard and the alert rules that name them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ROOT
from control_service import ControlService

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MONITORING = ROOT / "packaging" / "monitoring"
FIGURE = re.compile(r"\bthalweg_\w+\b")


def run_promtool(*arguments: object, text: str | None = None) -> str:
    """Runs promtool, which must find nothing wrong. Returns what it prints."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    command = [promtool, *map(str, arguments)]
    ended = subprocess.run(command, input=text, cwd=MONITORING, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def figures(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Figures of a service in a run, with a destination of notices."""
    service = ControlService(program, tmp_path_factory.mktemp("metrics"), 'webhook = "http://127.0.0.1:9"')
    try:
        service.arm()
        service.command("start")
        # The time until the disk is full follows from the rate.
        service.wait_for(lambda status: status["disk"]["seconds_left"] and status["totals"]["events"], "an event")
        yield service.ask("/metrics", role="watch")
    finally:
        service.end()


def expressions() -> list[str]:
    """Returns the expressions of the dashboard, for one instance."""
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    parts: list[dict[str, Any]] = [target for panel in dashboard["panels"] for target in panel["targets"]]
    return [part["expr"].replace("$instance", "daq-0") for part in [*parts, *dashboard["annotations"]["list"]]]


def test_promtool_finds_nothing_to_mend_in_the_figures(figures: str) -> None:
    assert run_promtool("check", "metrics", text=figures) == ""


def test_labels_are_of_the_topology(figures: str) -> None:
    names = {"source", "bucket", "builder", "node", "state", "severity", "acknowledged", "destination", "result"}
    found = set(re.findall(r'[{,](\w+)="', figures))
    assert found == names | {"version"}
    assert 'thalweg_source_fragments_total{source="adc-1",bucket="built"} ' in figures
    assert 'thalweg_state{state="running"} 1' in figures


def test_each_figure_that_the_dashboard_and_the_rules_name_is_there(figures: str) -> None:
    served = {line.split("{")[0].split(" ")[0] for line in figures.splitlines() if not line.startswith("#")}
    rules = re.sub("(?m)#.*$", "", (MONITORING / "thalweg.rules.yml").read_text())
    scenario = (MONITORING / "thalweg.rules.test.yml").read_text()
    for text in (*expressions(), rules, scenario):
        named = set(FIGURE.findall(text))
        assert named <= served, named - served


def test_the_rules_are_right_and_say_what_the_scenario_expects() -> None:
    run_promtool("check", "rules", "--lint=all", "--lint-fatal", "thalweg.rules.yml")
    run_promtool("test", "rules", "thalweg.rules.test.yml")
    scenario = (MONITORING / "thalweg.rules.test.yml").read_text()
    for alert in re.findall(r"alert: (\w+)", (MONITORING / "thalweg.rules.yml").read_text()):
        assert f"alertname: {alert}\n" in scenario, f"{alert} never fires in the scenario"


def test_prometheus_takes_the_example_of_its_configuration() -> None:
    run_promtool("check", "config", "--syntax-only", "prometheus.yml")


def test_the_expressions_of_the_dashboard_are_right(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(expressions())]
    file = tmp_path / "dashboard.rules.yml"
    # YAML includes JSON.
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    run_promtool("check", "rules", file)


def test_panels_of_the_dashboard_have_numbers_and_places_of_their_own() -> None:
    panels = json.loads((MONITORING / "grafana-dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert all(x < 24 for x, _ in cells)
