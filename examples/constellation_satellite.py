"""Satellite of Constellation whose transitions drive the run control of Thalweg.

    python constellation_satellite.py --group beamtest --name daq

The satellite is `ThalwegRun.daq`. Its section of the controller's configuration (both keys may be left out):

    [ThalwegRun.daq]
    url = "http://daq-0:8400"
    without = ["adc-1"]

| Constellation | Thalweg |
| --- | --- |
| initialize | reaches the service |
| launch, reconfigure | `configure` (without the sources of `without`) and `arm`: all hosts are examined |
| start | `start`, with the run identifier as the note of the run |
| stop | `stop`, and waits until the run is on disk |
| land | nothing: the experiment stays armed |

The satellite goes to ERROR with the service's own reason when a command is refused, when the run ends without it, and
when a run is not complete; a run that is under way is stopped then, and as well when Constellation interrupts it. While
the service is restarted a run goes on, for Thalweg and for Constellation.

The token that may command the service is that of THALWEG_CONTROL_TOKEN, or of the last service of this user:
configurations are seen by all of a Constellation.

Needs Python 3.11: pip install thalweg ConstellationDAQ
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from typing import Any

from constellation.core.configuration import Configuration
from constellation.core.logging import setup_cli_logging
from constellation.core.satellite import Satellite, SatelliteArgumentParser

from thalweg.control import Control, ControlError, ServiceLostError

# Time in seconds from one look at a run to the next.
STATUS_SECONDS = 0.5
# Longest time in seconds until a run has begun, or is on disk.
RUN_BEGIN_SECONDS = 60.0
RUN_END_SECONDS = 600.0
# Metrics: the unit, and the description.
METRICS = {
    "RUN_NUMBER": ("", "Number of the run in Thalweg"),
    "EVENTS": ("", "Events built"),
    "EVENTS_PER_SECOND": ("Hz", "Rate of events"),
    "BYTES_PER_SECOND": ("B/s", "Rate of payload"),
    "INCOMPLETE": ("", "Events closed incomplete"),
    "LOST": ("", "Fragments lost"),
}


class ThalwegRun(Satellite):
    """Run control of a Thalweg experiment."""

    control: Control
    left_out: list[str]
    """Names of the sources that runs are taken without."""
    number: int | None = None
    """Number of the run that this satellite has started, while it is under way."""

    def __init__(self, **options: Any) -> None:
        """Creates a satellite, which waits for commands."""
        super().__init__(**options)
        for name, (unit, description) in METRICS.items():
            self.register_metric(name, unit, description)

    def do_initializing(self, config: Configuration) -> str:
        """Reaches the service."""
        self.control = Control(config.get_str("url", "") or None)
        self.left_out = config.get_array("without", [], element_type=str)
        return f"{self.control.url}: {self.control.status()['sentence']}"

    def do_launching(self) -> str:
        """Configures and arms the experiment."""
        arguments = {"without": self.left_out} if self.left_out else {}
        self.control.command("configure", **arguments)
        self.control.command("arm")
        status = self.control.wait_until(lambda status: status["commands"]["start"]["legal"], RUN_BEGIN_SECONDS)
        return str(status["sentence"])

    def do_reconfigure(self, config: Configuration) -> str:
        """Configures and arms the experiment with other sources."""
        self.left_out = config.get_array("without", self.left_out, element_type=str)
        return self.do_launching()

    def do_starting(self, run_identifier: str) -> str:
        """Starts a run."""
        self.number = self.control.command("start", note=run_identifier)["run"]["number"]
        self.control.wait_until(lambda status: status["state"] != "starting", RUN_BEGIN_SECONDS)
        return f"run {self.number}"

    def do_run(self) -> str:
        """Sends the figures of the run until it is stopped."""
        while not self.stop_requested():
            try:
                self.send_figures(self.control.status())
            except ServiceLostError as error:
                self.fsm.set_status(f"the run goes on without run control: {error}")
            time.sleep(STATUS_SECONDS)
        return f"run {self.number}"

    def send_figures(self, status: dict[str, Any]) -> None:
        """Sends the figures of a status as metrics. Raises RuntimeError if the run is over."""
        run, totals = status["run"], status["totals"]
        if run is None:
            number, self.number = self.number, None
            msg = f"run {number} has ended: {reasons_of(status)}"
            raise RuntimeError(msg)
        # Another one than before where a client of Thalweg has given the command `next`.
        self.number = run["number"]
        figures = {
            "RUN_NUMBER": run["number"],
            "EVENTS": totals["events"],
            "EVENTS_PER_SECOND": totals["events_per_second"],
            "BYTES_PER_SECOND": totals["bytes_per_second"],
            "INCOMPLETE": totals["incomplete"],
            "LOST": status["ledger"]["lost"],
        }
        for name, value in figures.items():
            self.stat(name, value)
        self.fsm.set_status(
            f"run {run['number']}: {totals['events']:,} events, {totals['events_per_second']:.0f} events/s, "
            f"{totals['incomplete']} incomplete"
        )

    def do_stopping(self) -> str:
        """Stops the run, and waits until it is on disk. Raises RuntimeError if it is not complete."""
        if self.number is None:
            return "no run is under way"
        number, self.number = self.number, None
        self.control.command("stop")
        status = self.control.wait_until(lambda status: status["run"] is None, RUN_END_SECONDS)
        last = status["last_run"]
        if last["number"] == number and last["state"] != "complete":
            msg = f"run {number} is {last['state']}: {reasons_of(status)}"
            raise RuntimeError(msg)
        return f"run {number}: {last['events']:,} events on disk"

    def fail_gracefully(self) -> str:
        """Ends the run of this satellite, if there is one: what was taken stays."""
        if self.number is None:
            return "no run is under way"
        number, self.number = self.number, None
        try:
            self.control.command("stop")
        except ControlError as error:
            return f"run {number} is not stopped: {error}"
        return f"run {number} is stopped"


def reasons_of(status: dict[str, Any]) -> str:
    """Returns the reasons why the last run is not complete, or the state of the experiment in a sentence."""
    return "; ".join((status["last_run"] or {}).get("reasons", [])) or str(status["sentence"])


def main() -> None:
    """Runs the satellite."""
    parser = SatelliteArgumentParser(description="Run control of a Thalweg experiment")
    options = vars(parser.parse_args())
    setup_cli_logging(options.pop("level"))
    satellite = ThalwegRun(**options)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            satellite.run_satellite()
        # Constellation has ended its threads, unless the signal came while it was pausing between two commands.
        satellite.reentry()
    except (KeyboardInterrupt, RuntimeError):
        # At a second signal, or after 1.5 s for each, it leaves threads behind, which would keep this process.
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main()
