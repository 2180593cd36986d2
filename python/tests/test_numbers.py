"""Numbers of events from what EPICS and detectors of Dectris' count, whatever happens on the way: trials from seeds.

    THALWEG_TRIALS=1000 pytest python/tests/test_numbers.py

Each payload names its trigger, and a fragment whose status is good has to have the number of its trigger. An equal seed
gives an equal trial. Without `THALWEG_TRIALS` they are the same few each time, with it so many fresh ones of each kind.
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
# Seeds that went wrong once, by the kind of trial.
EPICS_SEEDS = [62, 88, 110, 116, 134, 167, 252, 355, 2889]
DECTRIS_SEEDS = [43, 97, 136]
TRIGGERS = 300
# More numbers in a row are not left out: no device loses so many.
FURTHEST = (1 << 24) + TRIGGERS
# A counter that is set back by so many is told from arrays that come late, though they are not dated.
SEEN_TO_COUNT = 64
# So many arrays come in their order, and none is lost, once a counter was set back.
SPARED = 20


@dataclass
class Trial:
    """Fragments of a run, and what is wrong with them."""

    seed: int
    # The triggers that the source had.
    received: set[int] = field(default_factory=set)
    # Number, trigger, and whether the number is certain.
    fragments: list[tuple[int, int, bool]] = field(default_factory=list)
    # The trigger that is number 0, where it is not that of the first fragment.
    origin: int | None = None
    # Arrays are only lost or without a count: there are no more numbers than triggers.
    is_plain: bool = False
    wrong: list[str] = field(default_factory=list)

    @property
    def uncertain(self) -> int:
        """Returns how many fragments have uncertain numbers."""
        return sum(not certain for *_, certain in self.fragments)

    def take_all(self, take: Callable[..., Any], *, idle: bool = False) -> None:
        """Takes the images that are there, as a source does; `idle`: those, too, that wait for others."""
        while (image := take(idle=idle)) is not None:
            number, trigger = image.number, int(image.array[0])
            before = self.fragments[-1][0] if self.fragments else -1
            if self.origin is None:
                self.origin = trigger - number
            if number <= before or number > before + FURTHEST or (self.is_plain and number > trigger - self.origin):
                self.wrong.append(f"trigger {trigger} is number {number}, behind {before}, where {self.origin} is 0")
            if image.certain and number != trigger - self.origin:
                last = self.fragments[-3:]
                self.wrong.append(f"trigger {trigger} is number {number}, behind {last}, where {self.origin} is 0")
            self.fragments.append((number, trigger, image.certain))

    def close(self, unused: int) -> Trial:
        """Compares what came with what is in the run, where so many were left out. Returns itself."""
        missing = sorted(self.received - {trigger for _, trigger, _ in self.fragments})
        if len(missing) > unused:
            self.wrong.append(f"triggers {missing} came and are not in the run, and {unused} were left out")
        return self


def payload(trigger: int) -> np.ndarray[Any, Any]:
    """Returns an array that names its trigger."""
    return np.array([trigger], np.int64)


@dataclass
class Published:
    """An array on its way."""

    count: int | None
    time: int | None
    trigger: int


class Camera:
    """A camera whose server counts and dates its arrays, and the source that takes them."""

    def __init__(self, seed: int, *, is_calm: bool) -> None:
        """Draws what they are."""
        self.random = random = Random(seed)
        self.trouble = 0.0 if is_calm else random.choice([0.1, 0.3, 0.6, 1.0])
        self.trial = Trial(seed)
        self.numbering, self.updates = epics._Numbering(), epics._UpdateQueue()
        self.is_dated = random.random() < 0.7
        self.count = random.choice([0, 1, random.randrange(1 << 32), (1 << 32) - random.randrange(1, 250)])
        self.clock = 1_800_000_000 * 10**9 + random.randrange(10**9)
        # The count of an array that has none, and so many of a thousand are of that kind.
        self.unset, self.without = random.choice([0, None]), self.draw(10, 1000)
        # So many of a thousand go this way.
        self.lost, self.late, self.repeated = (self.draw(5, 30) for _ in range(3))
        self.set_back, self.away, self.busy, self.quiet = (self.draw(2, 5) for _ in range(4))
        # Triggers for which this lasts.
        self.losing = self.spared = self.away_for = self.busy_for = 0
        # Counts that were lost.
        self.missing = [0]
        # Arrays that as many others will overtake.
        self.delayed: list[tuple[int, Published]] = []
        # The server's last arrays, and the highest count that its client had since it began to count.
        self.posted: list[Published] = []
        self.newest: int | None = None

    def draw(self, *often: int) -> int:
        """Returns how often in a thousand a fault is; most trials do without some."""
        return self.random.choice(often) if self.random.random() < self.trouble else 0

    def often(self, of_thousand: int) -> bool:
        return self.random.randrange(1000) < of_thousand

    def run(self) -> Trial:
        """Returns what came of it. The camera has begun before the run."""
        begins, before = self.random.randrange(20), set[int]()
        for trigger in range(TRIGGERS):
            if trigger == begins:
                self.look()
                self.numbering.begin_run()
                before, self.trial = self.trial.received, Trial(self.trial.seed)
                self.trial.is_plain = not (self.late or self.repeated or self.set_back or self.away)
            self.clock += self.random.randrange(900_000, 1_100_000)
            # A source that is busy may find both at once.
            if self.often(self.away * (10 if self.busy_for else 1)) and not self.away_for:
                self.updates.put(epics._Disconnect())
                # For no array, for one, for some.
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
                # Its queue may become full meanwhile.
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
        # An array from before the run may come once more.
        self.trial.received -= before
        return self.trial.close(self.numbering.unused)

    def taken(self, trigger: int) -> Published:
        """Returns the array of a trigger."""
        count, self.count = self.count, (self.count + 1) % (1 << 32)
        # An int of EPICS has a sign.
        signed = count - (1 << 32) if count >= 1 << 31 else count
        time = self.clock if self.is_dated else None
        return Published(self.unset if self.often(self.without) else signed, time, trigger)

    def send(self, array: Published) -> None:
        """An array goes through the plugins and the queue of the server."""
        if self.spared:
            self.spared -= 1
            self.post(array)
        elif self.losing or self.often(self.lost):
            self.losing = self.losing - 1 if self.losing else self.random.choice([0, 0, self.random.randrange(100)])
            self.missing.append((array.count or 0) % (1 << 32))
        elif self.often(self.late):
            # A neighbour, as far as is promised, and further.
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
        """An array is the server's last one, and goes to its client."""
        self.posted.append(array)
        self.updates.put(array)
        if array.count != self.unset and self.updates._dropped == 0:
            count = (array.count or 0) % (1 << 32)
            if self.newest is None or (count - self.newest) % (1 << 32) < 1 << 31:
                self.newest = count

    def count_anew(self) -> None:
        """The counter is set to another count, if that can be seen."""
        self.look()
        near = (self.count - self.random.randrange(100)) % (1 << 32)
        count = self.random.choice([0, 1, near, self.missing[-1], self.random.randrange(1 << 32)])
        if self.newest is not None:
            ahead = (count - self.newest) % (1 << 32)
            behind = (1 << 32) - ahead
            is_seen = (
                # As if it had come round, and some were lost.
                (count < self.newest and 1 < ahead < 1 << 31)
                # Too far ahead for a loss.
                or 1 << 25 < ahead < 3 << 30
                # As if it came late, or again.
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
        """The server cannot be reached, and is started anew, or goes on."""
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
        """The server can be reached again. A client that connects gets its last array, if it has one."""
        self.delayed = []
        if self.posted:
            self.post(self.posted.pop())

    def look(self) -> None:
        """The source takes what has arrived."""
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
    """A message of a detector on its way: the header or the end of a series, or an image of it."""

    kind: str
    series: dectris.Series
    # How many images there will be, where a header states it.
    total: int | None = None
    image: int = 0
    time: int | None = None
    # That of an image; the first one behind a header.
    trigger: int = 0


class Detector:
    """A detector that streams series, and the source that takes them."""

    def __init__(self, seed: int, *, is_calm: bool) -> None:
        """Draws what they are."""
        self.random = random = Random(seed)
        self.trouble = 0.0 if is_calm else random.choice([0.1, 0.3, 0.6, 1.0])
        self.trial = Trial(seed)
        self.numbering = dectris._Numbering()
        # Version 2 of the stream dates images, and series have unique ids.
        self.is_new = random.random() < 0.5
        self.clock = 1_800_000_000 * 10**9
        self.number = random.choice([1, 1, 1000])
        # So many of a thousand headers state no number of images, and so many messages go this way.
        self.without = self.draw(20, 1000)
        self.header_lost, self.end_lost, self.series_lost = (self.draw(20, 100) for _ in range(3))
        self.tail_lost, self.cut, self.restarts = (self.draw(20, 100) for _ in range(3))
        self.lost, self.late, self.repeated, self.quiet = (self.draw(2, 20) for _ in range(4))
        self.losing = 0
        # The messages before this one are not taken.
        self.begins = self.draw(1, 7, 60)
        self.delayed: list[tuple[int, Message]] = []
        # The series that the source has seen, and whether it has the end of the last one.
        self.seen: list[dectris.Series] = []
        self.has_end = False

    def draw(self, *often: int) -> int:
        """Returns how often in a thousand a fault is; most trials do without some."""
        return self.random.choice(often) if self.random.random() < self.trouble else 0

    def often(self, of_thousand: int) -> bool:
        return self.random.randrange(1000) < of_thousand

    def run(self) -> Trial:
        """Returns what came of it."""
        trigger = 0
        while trigger < TRIGGERS:
            trigger = self.take_series(trigger)
        self.arrive_late(len(self.delayed) + 100)
        self.trial.take_all(self.numbering.take, idle=True)
        return self.trial.close(0)

    def take_series(self, trigger: int) -> int:
        """Takes a series, from this trigger on. Returns the trigger behind its last one."""
        random = self.random
        total = taken = random.choice([1, 2, random.randrange(1, 20), random.randrange(1, 100)])
        if self.often(self.cut):
            # It is disarmed before all triggers were there.
            taken = random.randrange(total)
            total = random.choice([total, total, 1_000_000, (1 << 31) - 1])
        restarts = self.often(self.restarts) and self.count_anew()
        series = dectris.Series(self.number, f"{self.number} {trigger}" if self.is_new else None)
        self.number += 1
        stated = None if self.often(self.without) else total
        tail = random.choice([taken, random.randrange(taken + 1), 0]) if self.often(self.tail_lost) else taken
        is_lost, has_header = self.often(self.series_lost), not self.often(self.header_lost)
        if restarts:
            # Something of it comes by which it can be seen that it is another series than the last one.
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
        """The detector is switched off and on, and counts its series anew. Returns whether that can be seen."""
        number = self.random.choice(
            [1, self.number, *[self.number - 1] * 3, self.number - 2, self.random.randrange(1000)]
        )
        # The next number by chance cannot be told from one that goes on.
        if number < 0 or (self.seen and number == self.seen[-1].number + 1):
            return False
        self.number, self.delayed, self.losing = number, [], 0
        return True

    def send(self, message: Message) -> None:
        """An image goes its way."""
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
        """So many others have overtaken those that are on their way."""
        due = [late for by, late in self.delayed if by <= others]
        self.delayed = [(by - others, late) for by, late in self.delayed if by > others]
        for late in due:
            self.arrive(late)

    def arrive(self, message: Message) -> None:
        """The source has a message."""
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
    """Returns trials from these seeds and `TRIALS` others. Fails where one has gone wrong, and names its seed."""
    trials = [trial(seed) for seed in [*seeds, *range(FIRST_SEED, FIRST_SEED + TRIALS)]]
    wrong = [f"seed {one.seed}: {one.wrong[0]}" for one in trials if one.wrong]
    assert not wrong, f"{len(wrong)} of {len(trials)}: " + "; ".join(wrong[:5])
    return trials


def counted(trials: list[Trial]) -> tuple[int, int]:
    """Returns how many fragments there are, and how many of them are uncertain."""
    return sum(len(one.fragments) for one in trials), sum(one.uncertain for one in trials)


def test_no_fragment_whose_status_is_good_is_another_triggers_of_what_epics_publishes() -> None:
    fragments, uncertain = counted(try_all(lambda seed: Camera(seed, is_calm=False).run(), EPICS_SEEDS))
    print(f"{TRIALS} trials, {fragments} fragments, of which {uncertain} are uncertain")
    assert 0 < uncertain < fragments


def test_no_number_of_what_epics_publishes_is_uncertain_where_nothing_goes_wrong() -> None:
    fragments, uncertain = counted(try_all(lambda seed: Camera(seed, is_calm=True).run(), []))
    assert fragments > 0
    assert uncertain == 0


def test_no_fragment_whose_status_is_good_is_another_triggers_of_what_dectris_detectors_stream() -> None:
    fragments, uncertain = counted(try_all(lambda seed: Detector(seed, is_calm=False).run(), DECTRIS_SEEDS))
    print(f"{TRIALS} trials, {fragments} fragments, of which {uncertain} are uncertain")
    assert 0 < uncertain < fragments


def test_no_number_of_what_dectris_detectors_stream_is_uncertain_where_nothing_goes_wrong() -> None:
    fragments, uncertain = counted(try_all(lambda seed: Detector(seed, is_calm=True).run(), []))
    assert fragments > 0
    assert uncertain == 0


def certain(numbering: Any) -> list[tuple[int, bool]]:
    """Returns the number of each image that is there, and whether it is certain."""
    return [(image.number, image.certain) for image in iter(lambda: numbering.take(idle=True), None)]


def test_a_late_array_is_uncertain_once_the_counter_has_begun_anew() -> None:
    numbering = epics._Numbering()
    # 9 is late, and 10 and 6 come once more, undated.
    for count in [3, 4, 5, 6, 7, 8, 10, 10, 9, 11, 6]:
        numbering.add(count, None, payload(count))
    # The last one would be number 6 by where the counter is now.
    there = [(number, number in {0, 1, 2, 3, 4, 5, 7}) for number in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11]]
    assert certain(numbering) == there


def test_an_array_that_is_far_ahead_and_was_taken_before_is_uncertain() -> None:
    numbering = epics._Numbering()
    # The counter was set back before the run, and one from before that is late.
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
