"""Front end of MIDAS whose run transitions drive the run control of Thalweg.

    export MIDASSYS=... PYTHONPATH=$MIDASSYS/python
    python midas_frontend.py          # -h HOST and -e EXPERIMENT, as all front ends of MIDAS

| MIDAS | Thalweg |
| --- | --- |
| begin of run | `configure` and `arm` where needed, then `start`, with the number of MIDAS's run in the note |
| pause, resume | `pause`, `resume` |
| end of run | `stop`; the transition ends when the run is on disk |

A transition that Thalweg refuses is refused in MIDAS, with the service's own reason. An end of run is never refused:
what is wrong with the run is a message and the alarm `Thalweg`, as it is for a run that ends without MIDAS.

While a run is under way, the equipment `Thalweg` sends an event each second: the bank THLG has, as doubles, the number
of the run, the events built, those incomplete, fragments lost, events/s and bytes/s. They are in the history, too.

The service is that of THALWEG_CONTROL_URL and THALWEG_CONTROL_TOKEN, or the last one of this user.

Needs the Python package of MIDAS, which comes with MIDAS, and Thalweg's: pip install thalweg
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import midas  # pyright: ignore[reportMissingImports]
import midas.event  # pyright: ignore[reportMissingImports]
import midas.frontend  # pyright: ignore[reportMissingImports]

from thalweg.control import Control, ControlError

if TYPE_CHECKING:
    from collections.abc import Callable

# Id of this equipment's events: one of its own in the experiment.
EVENT_ID = 77
PERIOD_MS = 1000
# Longest time in seconds until the experiment is armed, and until a run is on disk. MIDAS waits for two minutes.
ARM_SECONDS = 60.0
RUN_END_SECONDS = 100.0
# Longest reason in MIDAS, in bytes.
REASON_BYTES = 255


class RunEquipment(midas.frontend.EquipmentBase):
    """Equipment with the figures of a run."""

    def __init__(self, client: Any, control: Control) -> None:
        """Creates the equipment."""
        common = midas.frontend.InitialEquipmentCommon()
        common.equip_type = midas.EQ_PERIODIC
        common.event_id = EVENT_ID
        common.buffer_name = "SYSTEM"
        common.period_ms = PERIOD_MS
        common.read_when = midas.RO_RUNNING | midas.RO_PAUSED
        common.log_history = True
        super().__init__(client, "Thalweg", common)
        self.control = control
        self.is_run_expected = False

    def readout_func(self) -> Any:
        """Returns an event with the figures of the run; None if there is no run, or no service."""
        try:
            status = self.control.status()
        except ControlError as error:
            # A run goes on while its service is restarted.
            self.set_status(ascii_text(str(error)), "yellowLight")
            return None
        if status["run"] is None:
            self.report_end(status)
            return None
        totals = status["totals"]
        figures = [status["run"]["number"], totals["events"], totals["incomplete"], status["ledger"]["lost"]]
        figures += [totals["events_per_second"], totals["bytes_per_second"]]
        self.set_status(ascii_text(f"run {status['run']['number']}: {totals['events']:,} events"), "greenLight")
        event = midas.event.Event()
        event.create_bank("THLG", midas.TID_DOUBLE, [float(figure) for figure in figures])
        return event

    def report_end(self, status: dict[str, Any]) -> None:
        """Raises an alarm, once, if MIDAS's run goes on and Thalweg's does not."""
        if self.is_run_expected:
            self.is_run_expected = False
            self.raise_alarm(f"the run has ended: {reasons_of(status)}")

    def raise_alarm(self, problem: str) -> None:
        """Raises the alarm of MIDAS for this equipment."""
        self.set_status(ascii_text(problem), "redLight")
        self.client.trigger_internal_alarm("Thalweg", ascii_text(f"Thalweg: {problem}"))


class RunFrontend(midas.frontend.FrontendBase):
    """Front end that follows the transitions of MIDAS."""

    def __init__(self) -> None:
        """Connects to MIDAS."""
        super().__init__("fethalweg")
        self.control = Control()
        self.run_equipment = RunEquipment(self.client, self.control)
        self.add_equipment(self.run_equipment)

    def begin_of_run(self, run_number: int) -> Any:
        """Starts a run of Thalweg."""

        def start_run() -> None:
            if not self.control.status()["commands"]["start"]["legal"]:
                self.control.command("configure")
                self.control.command("arm")
                self.control.wait_until(lambda status: status["commands"]["start"]["legal"], ARM_SECONDS)
            self.control.command("start", note=f"run {run_number} of MIDAS")
            self.control.wait_until(lambda status: status["state"] != "starting", ARM_SECONDS)
            self.run_equipment.is_run_expected = True

        return transition_result(start_run)

    def pause_run(self, run_number: int) -> Any:
        """Pauses the run of Thalweg."""
        return transition_result(lambda: self.control.command("pause"))

    def resume_run(self, run_number: int) -> Any:
        """Resumes the run of Thalweg."""
        return transition_result(lambda: self.control.command("resume"))

    def end_of_run(self, run_number: int) -> Any:
        """Stops the run of Thalweg, and reports how it has ended."""
        was_expected, self.run_equipment.is_run_expected = self.run_equipment.is_run_expected, False
        if was_expected:
            try:
                self.control.command("stop")
                status = self.control.wait_until(lambda status: status["run"] is None, RUN_END_SECONDS)
                last = status["last_run"]
                self.client.msg(
                    ascii_text(f"run {last['number']} of Thalweg: {last['events']} events, {last['state']}")
                )
                if last["state"] != "complete":
                    self.run_equipment.raise_alarm(f"run {last['number']} is {last['state']}: {reasons_of(status)}")
            except (ControlError, TimeoutError) as error:
                self.run_equipment.raise_alarm(str(error))
        return midas.status_codes["SUCCESS"]


def transition_result(drive: Callable[[], object]) -> Any:
    """Carries out a transition, and returns its result as MIDAS has it: a code, with the reason of a refusal."""
    try:
        drive()
    except (ControlError, TimeoutError) as error:
        return midas.status_codes["FE_ERR_DRIVER"], ascii_text(str(error))
    return midas.status_codes["SUCCESS"]


def reasons_of(status: dict[str, Any]) -> str:
    """Returns the reasons why the last run is not complete, or the state of the experiment in a sentence."""
    return "; ".join((status["last_run"] or {}).get("reasons", [])) or str(status["sentence"])


def ascii_text(text: str) -> str:
    """Returns a text as MIDAS's Python package can send it: in ASCII, and not too long."""
    return text.encode("ascii", "replace")[:REASON_BYTES].decode()


if __name__ == "__main__":
    RunFrontend().run()
