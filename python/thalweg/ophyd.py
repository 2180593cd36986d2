"""Bluesky detector: runs of a run control service, taken by plans of a RunEngine.

    >>> from bluesky import RunEngine
    >>> from bluesky.plans import count
    >>> from ophyd_async.core import init_devices
    >>> from thalweg.ophyd import RunDetector
    >>> RE = RunEngine()
    >>> with init_devices():
    ...     daq = RunDetector(events=100)  # runs of 100 events, or some more
    >>> RE(count([daq], num=3))

Staging the detector configures and arms the experiment. Each trigger of a step scan, and each kickoff of a fly scan, is
a run of its own. A *collection* has `events` consecutive events of the run; a trigger is one collection, a kickoff as
many as it was prepared for. The run ends after them, at one event for all sources, and may have some events more.

A plan fails if its run is not COMPLETE, as with a fragment that was dropped or lost: the error has the run's reasons.

The documents: a stream resource for each run, with the URI of its directory, and a stream datum for its collections.
Its data are the numbers of the events, (events,) of u8 for each collection: those of `thalweg.open(directory)`, as
positions `index * events` to `(index + 1) * events`. Events of step scans also have the run's number and its counts.

Needs ophyd-async: pip install thalweg[ophyd].
"""

from __future__ import annotations

import asyncio
import os
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thalweg.control import Control, ControlError

try:
    from event_model import ComposeStreamResource, ComposeStreamResourceBundle, DataKey, StreamRange
    from ophyd_async.core import (
        DetectorAcquireLogic,
        DetectorDataLogic,
        DetectorTriggerLogic,
        ReadableDataProvider,
        SignalR,
        StandardDetector,
        StreamableDataProvider,
        TriggerInfo,
        merge_gathered_dicts,
        soft_signal_r_and_setter,
    )
except ImportError as error:
    msg = f"thalweg.ophyd needs ophyd-async ({error}): pip install thalweg[ophyd]"
    raise ImportError(msg) from error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from bluesky.protocols import Reading, StreamAsset

__all__ = ["RUN_MIMETYPE", "RunDetector", "RunFailedError"]

# Type of a run's directory, in stream resources.
RUN_MIMETYPE = "application/x-thalweg-run"
# Longest time in seconds until the experiment has armed, and until a run has ended.
ARM_SECONDS = 60.0
END_SECONDS = 120.0
# Fragments that should have been built and were not, in the ledger.
DROPPED = ("dropped", "lost_in_device", "late", "corrupt", "lost")


class RunFailedError(RuntimeError):
    """A run of a plan is not complete, or ended before its collections were taken."""


@dataclass
class _Taken:
    """Run that was begun for a plan."""

    number: int
    uri: str
    # Number of collections of the runs before it, and of its own.
    first: int
    requested: int
    # Collections built so far.
    collections: int = 0
    # Documents that were emitted: the stream resource, and the number of collections.
    resource: ComposeStreamResourceBundle | None = None
    emitted: int = 0
    is_over: bool = False


class _Runs:
    """Runs of a plan, and signals of the counts of the last one."""

    def __init__(self, control: Control, events: int, directory: str | None) -> None:
        self.control = control
        self._directory = directory
        # Number of events of a collection, and of collections of the next run.
        self.events = events
        self.requested = 1
        self.taken: list[_Taken] = []
        self._follower: asyncio.Task[None] | None = None
        self.collections, self._set_collections = soft_signal_r_and_setter(int)
        self.run_number, self._set_run_number = soft_signal_r_and_setter(int)
        self.event_count, self._set_event_count = soft_signal_r_and_setter(int)
        self.incomplete, self._set_incomplete = soft_signal_r_and_setter(int)

    async def command(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Gives a command and returns the status."""
        return await asyncio.to_thread(self.control.command, name, **arguments)

    async def wait_until(self, condition: Callable[[dict[str, Any]], bool], timeout: float) -> dict[str, Any]:
        """Waits for a status with this property, and returns it."""
        return await asyncio.to_thread(self.control.wait_until, condition, timeout)

    async def prepare_experiment(self) -> None:
        """Brings the experiment to `armed`, and forgets former runs."""
        status = await asyncio.to_thread(self.control.status)
        if run := status["run"]:
            msg = f"run {run['number']} is under way: stop it first"
            raise RunFailedError(msg)
        self.run_uri(status, 0)
        if status["state"] == "idle":
            await self.command("configure")
            await self.command("arm")
        elif status["state"] == "configured":
            await self.arm_again(status)
        await self.wait_for_armed()
        self.taken.clear()
        self._set_collections(0)

    def run_uri(self, status: dict[str, Any], number: int) -> str:
        """Returns the URI of a run's directory (RFC 8089). Raises RunFailedError if runs are not recorded."""
        host, directory = "localhost", self._directory
        if directory is None:
            host, directory = status["service"]["host"], status["directory"]
        if not status["directory"]:
            msg = "the topology records nothing: plans need run.record = true"
            raise RunFailedError(msg)
        return f"file://{host}{urllib.parse.quote(directory)}/run-{number:06d}"

    async def arm_again(self, status: dict[str, Any]) -> None:
        """Arms an experiment that is configured."""
        try:
            await self.command("arm")
        except ControlError as refusal:
            # Nodes that have not finished with the last run refuse that; they arm by themselves.
            if status["last_run"] is None:
                raise
            try:
                await self.wait_for_armed()
            except TimeoutError:
                raise refusal from None

    async def wait_for_armed(self) -> None:
        """Waits until a run can begin. The experiment arms by itself after a run."""
        status = await self.wait_until(
            lambda status: status["commands"]["start"]["legal"] or status["state"] == "error", ARM_SECONDS
        )
        if status["state"] == "error":
            msg = f"the experiment is in error: {'; '.join(status['reasons'])}"
            raise RunFailedError(msg)

    async def begin_run(self) -> None:
        """Begins a run."""
        await self.wait_for_armed()
        status = await self.command("start")
        if (run := status["run"]) is None:
            msg = f"no run is under way after its start: {status['sentence']}"
            raise RunFailedError(msg)
        first = self.taken[-1].first + self.taken[-1].requested if self.taken else 0
        taken = _Taken(run["number"], self.run_uri(status, run["number"]), first, self.requested)
        self.taken.append(taken)
        self._set_run_number(taken.number)
        self._follower = asyncio.create_task(self._follow(taken))

    async def _follow(self, taken: _Taken) -> None:
        """Counts the collections of a run until it is over."""
        changes = self.control.changes()
        former = -1
        try:
            while (change := await asyncio.to_thread(next, changes, None)) is not None:
                if change.kind != "status":
                    continue
                status = change.data
                is_over = status["run"] is None or status["run"]["number"] != taken.number
                events = (status["last_run"] or {}).get("events", 0) if is_over else status["totals"]["events"]
                taken.collections = min(taken.requested, events // self.events)
                # Each event is a sign of life, for the detector's timeout.
                if events > former and not is_over:
                    self._set_collections(taken.first + taken.collections)
                former = events
                # A run that cannot be complete any more is not worth its time.
                is_spoilt = status["totals"]["incomplete"] or any(status["ledger"][name] for name in DROPPED)
                if is_over or is_spoilt:
                    return
        finally:
            # The detector waits for collections, and not for the end of a run: end_run says what went wrong.
            self._set_collections(taken.first + taken.requested)

    async def end_run(self) -> None:
        """Ends the last run if it is under way. Raises RunFailedError if it is not complete."""
        if not self.taken or self.taken[-1].is_over:
            return
        taken = self.taken[-1]
        status = await asyncio.to_thread(self.control.status)
        if status["run"] and status["run"]["number"] == taken.number and status["commands"]["stop"]["legal"]:
            await self.command("stop")
        await self.wait_until(
            lambda status: status["run"] is None or status["run"]["number"] != taken.number, END_SECONDS
        )
        taken.is_over = True
        if self._follower:
            await self._follower
        records = await asyncio.to_thread(self.control.runs)
        record = next((record for record in records if record["number"] == taken.number), None)
        if record is None:
            msg = f"there is no record of run {taken.number}"
            raise RunFailedError(msg)
        self._set_event_count(record["events"])
        self._set_incomplete(record["incomplete"])
        if record["state"] != "complete":
            msg = f"run {taken.number} is {record['state']}: {'; '.join(record['reasons'])}"
            raise RunFailedError(msg)
        if taken.collections < taken.requested:
            msg = f"run {taken.number} ended after {taken.collections} of {taken.requested} collections"
            raise RunFailedError(msg)


class _TriggerLogic(DetectorTriggerLogic):
    """Number of collections of the next run."""

    def __init__(self, runs: _Runs) -> None:
        self._runs = runs

    async def prepare_internal(self, num: int, livetime: float, deadtime: float) -> None:
        if livetime or deadtime:
            msg = "the topology sets how sources are triggered: livetime and deadtime must be 0"
            raise ValueError(msg)
        if num < 1:
            msg = "a run of a plan has at least one collection: number_of_events must not be 0"
            raise ValueError(msg)
        self._runs.requested = num

    async def default_trigger_info(self) -> TriggerInfo:
        return TriggerInfo()


class _AcquireLogic(DetectorAcquireLogic):
    """Beginning and end of runs."""

    def __init__(self, runs: _Runs) -> None:
        self._runs = runs

    async def ensure_ready(self) -> None:
        await self._runs.prepare_experiment()

    async def start_acquiring(self) -> None:
        await self._runs.begin_run()

    async def wait_for_idle(self) -> None:
        await self._runs.end_run()

    async def ensure_stopped(self) -> None:
        await self._runs.end_run()


class _RunsProvider(StreamableDataProvider):
    """Documents of the runs' event numbers."""

    def __init__(self, runs: _Runs, datakey_name: str) -> None:
        self._runs = runs
        self._datakey_name = datakey_name
        self.collections_written_signal = runs.collections

    async def make_datakeys(self, collections_per_event: int) -> dict[str, DataKey]:
        datakey = DataKey(
            source=self._runs.control.url,
            shape=[collections_per_event, self._runs.events],
            dtype="array",
            dtype_numpy="<u8",
            external="STREAM:",
        )
        return {self._datakey_name: datakey}

    async def make_stream_docs(
        self, collections_written: int, collections_per_event: int
    ) -> AsyncIterator[StreamAsset]:
        for taken in self._runs.taken:
            built = min(collections_written - taken.first, taken.collections) // collections_per_event
            if built <= taken.emitted:
                continue
            if taken.resource is None:
                taken.resource = ComposeStreamResource()(
                    mimetype=RUN_MIMETYPE,
                    uri=taken.uri,
                    data_key=self._datakey_name,
                    parameters={
                        "run": taken.number,
                        "events": self._runs.events * collections_per_event,
                        "chunk_shape": (1, self._runs.events),
                    },
                )
                yield "stream_resource", taken.resource.stream_resource_doc
            indices = StreamRange(start=taken.emitted, stop=built)
            taken.emitted = built
            yield "stream_datum", taken.resource.compose_stream_datum(indices)


class _RunsLogic(DetectorDataLogic):
    """Event numbers of the runs, in step and fly scans."""

    def __init__(self, runs: _Runs) -> None:
        self._runs = runs

    async def prepare_unbounded(self, datakey_name: str) -> StreamableDataProvider:
        return _RunsProvider(self._runs, datakey_name)


class _CountsProvider(ReadableDataProvider):
    """Readings of signals."""

    def __init__(self, signals: Sequence[SignalR[int]]) -> None:
        self._signals = signals

    async def make_datakeys(self) -> dict[str, DataKey]:
        return await merge_gathered_dicts(signal.describe() for signal in self._signals)

    async def make_readings(self) -> dict[str, Reading[Any]]:
        return await merge_gathered_dicts(signal.read() for signal in self._signals)


class _CountsLogic(DetectorDataLogic):
    """Number and counts of the run, in step scans."""

    def __init__(self, signals: Sequence[SignalR[int]]) -> None:
        self._signals = signals

    async def prepare_single(self, datakey_name: str) -> ReadableDataProvider:
        return _CountsProvider(self._signals)

    def get_hinted_fields(self, datakey_name: str) -> Sequence[str]:
        return [f"{datakey_name}-run_number", f"{datakey_name}-event_count"]


class RunDetector(StandardDetector):
    """Detector whose triggers are runs of an experiment."""

    def __init__(
        self,
        control: Control | None = None,
        *,
        events: int = 1,
        directory: str | os.PathLike[str] | None = None,
        name: str = "",
    ) -> None:
        """Creates the detector, with collections of this number of events.

        `control` is the service; this user's last one if it is left out. `directory` is that of the runs, as readers of
        the documents see it; that of the topology, on the host of the service, if it is left out.
        """
        if events < 1:
            msg = f"events: {events}: a collection has at least one"
            raise ValueError(msg)
        if directory is not None and not Path(directory).is_absolute():
            msg = f"directory: {os.fspath(directory)!r} is no absolute path"
            raise ValueError(msg)
        runs = _Runs(control or Control(), events, None if directory is None else os.fspath(directory))
        self.run_number = runs.run_number
        self.event_count = runs.event_count
        self.incomplete = runs.incomplete
        self.collections_written = runs.collections
        self.events_per_collection, _ = soft_signal_r_and_setter(int, events)
        self.service, _ = soft_signal_r_and_setter(str, runs.control.url)
        self.add_config_signals(self.events_per_collection, self.service)
        self.add_detector_logics(
            _TriggerLogic(runs),
            _AcquireLogic(runs),
            _RunsLogic(runs),
            _CountsLogic([self.run_number, self.event_count, self.incomplete]),
        )
        super().__init__(name=name)
