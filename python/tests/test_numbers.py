"""Event numbers of the sources for EPICS and Dectris detectors, under faults: trials from seeds.

    THALWEG_TRIALS=1000 pytest python/tests/test_numbers.py

Each payload contains the number of its trigger, and a fragment without the status `uncertain` must have the number of
its trigger. A trial is determined by its seed. Without `THALWEG_TRIALS`, the same few trials are run each time; with
it, that number of new ones of each kind.
"""

from __future__ import annotations

import os
import queue
import time
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from thalweg import dectris, epics

if TYPE_CHECKING:
    from collections.abc import Callable

TRIALS = int(os.environ.get("THALWEG_TRIALS", "30"))
FIRST_SEED = int(time.time()) << 16 if "THALWEG_TRIALS" in os.environ else 0
# Seeds of trials that failed once.
EPICS_SEEDS = [62, 88, 110, 116, 134, 167, 252, 355, 2889]
DECTRIS_SEEDS = [43, 97, 136]
TRIGGERS = 300
# Largest gap in event numbers: no device loses more.
FURTHEST = (1 << 24) + TRIGGERS
# Number of counts by which a counter must be set back to be distinguished from late arrays without times.
SEEN_TO_COUNT = 64
# Number of arrays in order and without loss after a counter was set back.
SPARED = 20


@dataclass
class Trial:
    """Fragments of a run, and the errors in their numbers."""

    seed: int
    # Triggers whose arrays the source received.
    received: set[int] = field(default_factory=set)
    # Number, trigger, and whether the number is certain.
    fragments: list[tuple[int, int, bool]] = field(default_factory=list)
    # Trigger with the number 0.
    origin: int | None = None
    # True if arrays are only lost or without a count, so that there are no more numbers than triggers.
    is_plain: bool = False
    wrong: list[str] = field(default_factory=list)

    @property
    def uncertain(self) -> int:
        """Number of fragments with uncertain numbers."""
        return sum(not certain for *_, certain in self.fragments)

    def take_all(self, take: Callable[..., Any], *, idle: bool = False) -> None:
        """Takes the next images as a source does; with `idle`, also those that wait for earlier ones."""
        while (image := take(idle=idle)) is not None:
            number, trigger = image.number, int(image.array[0])
            before = self.fragments[-1][0] if self.fragments else -1
            if self.origin is None:
                self.origin = trigger - number
            if number <= before or number > before + FURTHEST or (self.is_plain and number > trigger - self.origin):
                self.wrong.append(f"trigger {trigger} is number {number} after {before}, where {self.origin} is 0")
            if image.certain and number != trigger - self.origin:
                last = self.fragments[-3:]
                self.wrong.append(f"trigger {trigger} is number {number} after {last}, where {self.origin} is 0")
            self.fragments.append((number, trigger, image.certain))

    def close(self, unused: int) -> Trial:
        """Compares the received arrays with those in the run, from which `unused` were left out. Returns the trial."""
        missing = sorted(self.received - {trigger for _, trigger, _ in self.fragments})
        if len(missing) > unused:
            self.wrong.append(
                f"triggers {missing} were received and are not in the run, from which {unused} were left out"
            )
        return self


def payload(trigger: int) -> np.ndarray[Any, Any]:
    """Returns an array with the number of its trigger."""
    return np.array([trigger], np.int64)


@dataclass
class Published:
    """Array on its way from the server to the source."""

    count: int | None
    time: int | None
    trigger: int


class Camera:
    """Camera whose server counts its arrays and sets their times, and the source that receives them."""

    def __init__(self, seed: int, *, is_calm: bool) -> None:
        """Draws the properties of the trial from the seed."""
        self.random = random = Random(seed)
        self.trouble = 0.0 if is_calm else random.choice([0.1, 0.3, 0.6, 1.0])
        self.trial = Trial(seed)
        self.numbering, self.updates = epics._Numbering(), epics._UpdateQueue()
        self.is_dated = random.random() < 0.7
        self.count = random.choice([0, 1, random.randrange(1 << 32), (1 << 32) - random.randrange(1, 250)])
        self.clock = 1_800_000_000 * 10**9 + random.randrange(10**9)
        # Count of an array without one, and the number of such arrays in a thousand.
        self.unset, self.without = random.choice([0, None]), self.draw(10, 1000)
        # Faults in a thousand arrays.
        self.lost, self.late, self.repeated = (self.draw(5, 30) for _ in range(3))
        self.set_back, self.away, self.busy, self.quiet = (self.draw(2, 5) for _ in range(4))
        # Triggers for which these states last.
        self.losing = self.spared = self.away_for = self.busy_for = 0
        # Counts that were lost.
        self.missing = [0]
        # Late arrays, with the number of others that will overtake them.
        self.delayed: list[tuple[int, Published]] = []
        # Latest arrays of the server, and the highest count that was sent since its counter was started.
        self.posted: list[Published] = []
        self.newest: int | None = None

    def draw(self, *often: int) -> int:
        """Returns the frequency of a fault in a thousand, which is 0 for some faults in most trials."""
        return self.random.choice(often) if self.random.random() < self.trouble else 0

    def often(self, of_thousand: int) -> bool:
        return self.random.randrange(1000) < of_thousand

    def run(self) -> Trial:
        """Runs the trial, in which the camera begins before the run."""
        begins, before = self.random.randrange(20), set[int]()
        for trigger in range(TRIGGERS):
            if trigger == begins:
                self.look()
                self.numbering.begin_run()
                before, self.trial = self.trial.received, Trial(self.trial.seed)
                self.trial.is_plain = not (self.late or self.repeated or self.set_back or self.away)
            self.clock += self.random.randrange(900_000, 1_100_000)
            # A busy source may receive disconnect and reconnect at once.
            if self.often(self.away * (10 if self.busy_for else 1)) and not self.away_for:
                self.updates.put(epics._Disconnect())
                # The server is away for no array, for one, or for several.
                self.away_for = self.random.choice([0, 1, self.random.randrange(2, 40)])
                if self.away_for == 0:
                    self.connect()
            if self.away_for:
                self.be_away(trigger)
            else:
                if self.often(self.set_back):
                    self.count_anew()
                self.send(self.taken(trigger))
            if self.often(self.busy):
                # The source's queue may overflow meanwhile.
                self.busy_for = self.random.randrange(1, 150)
            self.busy_for = max(0, self.busy_for - 1)
            if self.spared or not self.busy_for:
                self.look()
            if self.often(self.quiet):
                self.look()
                self.trial.take_all(self.numbering.take, idle=True)
        for _, late in self.delayed:
            self.post(late)
        self.look()
        self.trial.take_all(self.numbering.take, idle=True)
        # An array from before the run may arrive again.
        self.trial.received -= before
        return self.trial.close(self.numbering.unused)

    def taken(self, trigger: int) -> Published:
        """Returns the array of a trigger."""
        count, self.count = self.count, (self.count + 1) % (1 << 32)
        # uniqueId is a signed integer.
        signed = count - (1 << 32) if count >= 1 << 31 else count
        time = self.clock if self.is_dated else None
        return Published(self.unset if self.often(self.without) else signed, time, trigger)

    def send(self, array: Published) -> None:
        """Passes an array through the plugins and the queue of the server."""
        if self.spared:
            self.spared -= 1
            self.post(array)
        elif self.losing or self.often(self.lost):
            self.losing = self.losing - 1 if self.losing else self.random.choice([0, 0, self.random.randrange(100)])
            self.missing.append((array.count or 0) % (1 << 32))
        elif self.often(self.late):
            # By one, within the limit for reordering, and beyond it.
            by = self.random.choice([1, 1, self.random.randrange(1, 17), self.random.randrange(1, 17), 40])
            self.delayed.append((by, array))
            return
        else:
            self.post(array)
            if self.often(self.repeated):
                self.post(self.random.choice([self.posted[-1], self.random.choice(self.posted[-20:])]))
        due = [late for by, late in self.delayed if by <= 1]
        self.delayed = [(by - 1, late) for by, late in self.delayed if by > 1]
        for late in due:
            self.post(late)

    def post(self, array: Published) -> None:
        """Publishes an array: it is the server's last one, and is sent to the client."""
        self.posted.append(array)
        self.updates.put(array)
        if array.count != self.unset and self.updates._dropped == 0:
            count = (array.count or 0) % (1 << 32)
            if self.newest is None or (count - self.newest) % (1 << 32) < 1 << 31:
                self.newest = count

    def count_anew(self) -> None:
        """Sets the counter to another count, if the source can detect it."""
        self.look()
        near = (self.count - self.random.randrange(100)) % (1 << 32)
        count = self.random.choice([0, 1, near, self.missing[-1], self.random.randrange(1 << 32)])
        if self.newest is not None:
            ahead = (count - self.newest) % (1 << 32)
            behind = (1 << 32) - ahead
            is_seen = (
                # As if the counter had wrapped around, with losses.
                (count < self.newest and 1 < ahead < 1 << 31)
                # Too far ahead for a loss.
                or 1 << 25 < ahead < 3 << 30
                # As if the array were late or repeated.
                or (behind <= 1 << 30 and (self.is_dated or behind >= SEEN_TO_COUNT))
            )
            if not is_seen:
                return
        if not self.is_dated:
            for _, late in self.delayed:
                self.post(late)
            self.delayed = []
        self.count, self.newest, self.spared = count, None, SPARED

    def be_away(self, trigger: int) -> None:
        """Simulates a trigger while the server is disconnected; the server may be restarted."""
        if self.random.randrange(2 * self.away_for) == 0:
            last = self.newest or 0
            near = (last + self.random.randrange(-20, 40)) % (1 << 32)
            self.count = self.random.choice([0, 1, near, self.random.randrange(1 << 32)])
            self.posted, self.newest = [], None
        else:
            self.posted.append(self.taken(trigger))
        self.away_for -= 1
        if self.away_for == 0:
            self.connect()

    def connect(self) -> None:
        """Reconnects the server, which sends its last array to the client, if it has one."""
        self.delayed = []
        if self.posted:
            self.post(self.posted.pop())

    def look(self) -> None:
        """Passes the queued updates to the source."""
        while True:
            try:
                lost, item = self.updates.get(0)
            except queue.Empty:
                return
            if isinstance(item, epics._Disconnect):
                self.numbering.note_disconnect()
                continue
            self.numbering.add(item.count, item.time, payload(item.trigger), lost=lost)
            self.trial.received.add(item.trigger)
            self.trial.take_all(self.numbering.take)


@dataclass
class Message:
    """Message on its way from a detector: the header or the end of a series, or an image."""

    kind: str
    series: dectris.Series
    # Number of images that a header states.
    total: int | None = None
    image: int = 0
    time: int | None = None
    # Trigger of an image; for a header, the first trigger of its series.
    trigger: int = 0


class Detector:
    """Detector that streams series, and the source that receives them."""

    def __init__(self, seed: int, *, is_calm: bool) -> None:
        """Draws the properties of the trial from the seed."""
        self.random = random = Random(seed)
        self.trouble = 0.0 if is_calm else random.choice([0.1, 0.3, 0.6, 1.0])
        self.trial = Trial(seed)
        self.numbering = dectris._Numbering()
        # Version 2 of the stream, in which images have times, and series have unique ids.
        self.is_new = random.random() < 0.5
        self.clock = 1_800_000_000 * 10**9
        self.number = random.choice([1, 1, 1000])
        # Number of headers in a thousand without a number of images, and faults in a thousand messages.
        self.without = self.draw(20, 1000)
        self.header_lost, self.end_lost, self.series_lost = (self.draw(20, 100) for _ in range(3))
        self.tail_lost, self.cut, self.restarts = (self.draw(20, 100) for _ in range(3))
        self.lost, self.late, self.repeated, self.quiet = (self.draw(2, 20) for _ in range(4))
        self.losing = 0
        # Number of messages before the source connects.
        self.begins = self.draw(1, 7, 60)
        self.delayed: list[tuple[int, Message]] = []
        # Series of which the source received messages, and whether it received the end of the last one.
        self.seen: list[dectris.Series] = []
        self.has_end = False

    def draw(self, *often: int) -> int:
        """Returns the frequency of a fault in a thousand, which is 0 for some faults in most trials."""
        return self.random.choice(often) if self.random.random() < self.trouble else 0

    def often(self, of_thousand: int) -> bool:
        return self.random.randrange(1000) < of_thousand

    def run(self) -> Trial:
        """Runs the trial."""
        trigger = 0
        while trigger < TRIGGERS:
            trigger = self.take_series(trigger)
        self.arrive_late(len(self.delayed) + 100)
        self.trial.take_all(self.numbering.take, idle=True)
        return self.trial.close(0)

    def take_series(self, trigger: int) -> int:
        """Takes a series that begins at a trigger. Returns the trigger after its last one."""
        random = self.random
        total = taken = random.choice([1, 2, random.randrange(1, 20), random.randrange(1, 100)])
        if self.often(self.cut):
            # The detector is disarmed before the last trigger.
            taken = random.randrange(total)
            total = random.choice([total, total, 1_000_000, (1 << 31) - 1])
        restarts = self.often(self.restarts) and self.count_anew()
        series = dectris.Series(self.number, f"{self.number} {trigger}" if self.is_new else None)
        self.number += 1
        stated = None if self.often(self.without) else total
        tail = random.choice([taken, random.randrange(taken + 1), 0]) if self.often(self.tail_lost) else taken
        is_lost, has_header = self.often(self.series_lost), not self.often(self.header_lost)
        if restarts:
            # A message arrives that distinguishes the series from the one before.
            is_lost, tail = False, taken
            is_same = series == self.seen[-1] if self.seen else False
            has_header |= taken == 0 or (is_same and not self.has_end)
        if has_header and not is_lost:
            self.arrive(Message("header", series, total=stated, trigger=trigger))
        for image in range(taken):
            self.clock += random.randrange(900_000, 1_100_000)
            time = self.clock if self.is_new else None
            message = Message("image", series, image=image, time=time, trigger=trigger + image)
            if restarts and image == 0 and not has_header:
                self.arrive(message)
            elif image < tail and not is_lost:
                self.send(message)
        if not is_lost and not self.often(self.end_lost):
            self.arrive(Message("end", series))
        return trigger + taken

    def count_anew(self) -> bool:
        """Restarts the detector and its counter of series. Returns whether the source can detect it."""
        number = self.random.choice(
            [1, self.number, *[self.number - 1] * 3, self.number - 2, self.random.randrange(1000)]
        )
        # If the number is the next one by chance, the restart cannot be detected.
        if number < 0 or (self.seen and number == self.seen[-1].number + 1):
            return False
        self.number, self.delayed, self.losing = number, [], 0
        return True

    def send(self, message: Message) -> None:
        """Sends an image, with faults."""
        if self.losing:
            self.losing -= 1
        elif self.often(self.lost):
            self.losing = self.random.choice([0, 0, self.random.randrange(30)])
        elif self.often(self.late):
            by = self.random.choice([1, 1, self.random.randrange(1, 17), self.random.randrange(1, 17), 40])
            self.delayed.append((by, message))
        else:
            self.arrive(message)
            if self.often(self.repeated):
                self.arrive(message)
            self.arrive_late(1)
            if self.often(self.quiet):
                self.trial.take_all(self.numbering.take, idle=True)

    def arrive_late(self, others: int) -> None:
        """Delivers the late images that `others` images have overtaken."""
        due = [late for by, late in self.delayed if by <= others]
        self.delayed = [(by - others, late) for by, late in self.delayed if by > others]
        for late in due:
            self.arrive(late)

    def arrive(self, message: Message) -> None:
        """Passes a message to the source."""
        if self.begins:
            self.begins -= 1
            return
        if message.kind == "end":
            self.has_end = bool(self.seen) and message.series == self.seen[-1]
            self.numbering.add_end(message.series)
            return
        if self.trial.origin is None:
            self.trial.origin = message.trigger
        if message.series not in self.seen[-1:]:
            self.seen.append(message.series)
            self.has_end = False
        if message.kind == "header":
            self.numbering.add_header(message.series, message.total)
        else:
            self.trial.received.add(message.trigger)
            self.numbering.add_image(message.series, message.image, message.time, payload(message.trigger))
        self.trial.take_all(self.numbering.take)


def try_all(trial: Callable[[int], Trial], seeds: list[int]) -> list[Trial]:
    """Runs trials from these seeds and `TRIALS` others. Fails if one has errors, and names its seed."""
    trials = [trial(seed) for seed in [*seeds, *range(FIRST_SEED, FIRST_SEED + TRIALS)]]
    wrong = [f"seed {one.seed}: {one.wrong[0]}" for one in trials if one.wrong]
    assert not wrong, f"{len(wrong)} of {len(trials)}: " + "; ".join(wrong[:5])
    return trials


def counted(trials: list[Trial]) -> tuple[int, int]:
    """Returns the number of fragments, and how many of them are uncertain."""
    return sum(len(one.fragments) for one in trials), sum(one.uncertain for one in trials)


def test_epics_fragments_with_certain_numbers_have_those_of_their_triggers() -> None:
    fragments, uncertain = counted(try_all(lambda seed: Camera(seed, is_calm=False).run(), EPICS_SEEDS))
    print(f"{TRIALS} trials, {fragments} fragments, of which {uncertain} are uncertain")
    assert 0 < uncertain < fragments


def test_epics_numbers_without_faults_are_certain() -> None:
    fragments, uncertain = counted(try_all(lambda seed: Camera(seed, is_calm=True).run(), []))
    assert fragments > 0
    assert uncertain == 0


def test_dectris_fragments_with_certain_numbers_have_those_of_their_triggers() -> None:
    fragments, uncertain = counted(try_all(lambda seed: Detector(seed, is_calm=False).run(), DECTRIS_SEEDS))
    print(f"{TRIALS} trials, {fragments} fragments, of which {uncertain} are uncertain")
    assert 0 < uncertain < fragments


def test_dectris_numbers_without_faults_are_certain() -> None:
    fragments, uncertain = counted(try_all(lambda seed: Detector(seed, is_calm=True).run(), []))
    assert fragments > 0
    assert uncertain == 0


def certain(numbering: Any) -> list[tuple[int, bool]]:
    """Returns the number of each image, and whether it is certain."""
    return [(image.number, image.certain) for image in iter(lambda: numbering.take(idle=True), None)]


def test_a_late_array_is_uncertain_after_a_counter_reset() -> None:
    numbering = epics._Numbering()
    # 9 is late, and 10 and 6 are repeated, without times.
    for count in [3, 4, 5, 6, 7, 8, 10, 10, 9, 11, 6]:
        numbering.add(count, None, payload(count))
    # By the state of the counter, the last array would be number 6.
    there = [(number, number in {0, 1, 2, 3, 4, 5, 7}) for number in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11]]
    assert certain(numbering) == there


def test_an_array_with_a_higher_count_and_an_earlier_time_is_uncertain() -> None:
    numbering = epics._Numbering()
    # The counter was reset before the run, and an array from before the reset is late.
    for count, taken in [(7, 1000), (100, 900), (8, 1100)]:
        numbering.add(count, taken, payload(count))
    assert [is_certain for _, is_certain in certain(numbering)] == [True, False, False]


@pytest.mark.parametrize("which", ["ended", "beyond", "before", "again"])
def test_images_that_may_be_of_another_series_with_the_same_number_are_uncertain(which: str) -> None:
    numbering = dectris._Numbering()
    first, second = dectris.Series(1), dectris.Series(2)
    numbering.add_header(first, 5)
    for image in [0, 2, 3, 4] if which == "before" else [0, 2]:
        numbering.add_image(first, image, None, payload(image))
    if which == "ended":
        numbering.add_end(first)
    elif which == "before":
        numbering.add_header(second, 5)
    elif which == "again":
        numbering.add_header(first, 5)
    image = 5 if which == "beyond" else 3 if which != "before" else 1
    numbering.add_image(first, image, None, payload(image))
    there = certain(numbering)
    assert [is_certain for number, is_certain in there].count(False) == 1
    number = {"ended": 3, "beyond": 5, "before": 1, "again": 8}[which]
    assert (number, False) in there
