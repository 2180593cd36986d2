"""Runs written by the letter of the format's description, and what the reader makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import (
    EMPTY,
    IMAGE_U8,
    IMAGE_U16,
    MISSING,
    NO_PAYLOAD_CRC,
    SAMPLES_I16,
    TIMED_OUT,
    Record,
    block,
    crc32c,
    write_run,
)

import thalweg

SAMPLES = np.arange(-10, 20, dtype="<i2").reshape(10, 3)
IMAGE = np.arange(12, dtype="<u2").reshape(3, 4) * 1000
SOURCES = {"1.0": {"channels": 3}, "2.5": {"width": 4, "height": 3}}


def both(event: int) -> list[Record]:
    """What the two sources say of an event."""
    return [
        Record(event, "2.5", IMAGE.tobytes(), IMAGE_U16, timestamp=2000 + event, window=5),
        Record(event, "1.0", (SAMPLES + event).tobytes(), SAMPLES_I16, timestamp=1000 + event, sequence=event + 3),
    ]


@pytest.fixture
def run(tmp_path: Path) -> thalweg.Run:
    """Events out of order and over two blocks; one incomplete, one with an empty fragment, one never closed."""
    late, early = both(4)
    first = block(7, 0, [*both(2), *both(0), late], [(0, 2, 2, 0)])
    missing = Record(5, "2.5", status=MISSING | TIMED_OUT | NO_PAYLOAD_CRC)
    empty = Record(6, "2.5", payload_type=IMAGE_U16, status=EMPTY)
    second = block(
        7, 1, [early, missing, both(5)[1], empty, both(6)[1], both(9)[0]], [(4, 1, 1, 0), (5, 1, 1, 1), (6, 1, 1, 0)]
    )
    return thalweg.open(write_run(tmp_path / "run-000007", [first, second], SOURCES))


def test_crc32c_is_castagnolis() -> None:
    # RFC 3720, appendix B.4: 32 bytes of zeros.
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_events_come_in_order_and_an_unfinished_one_does_not_come(run: thalweg.Run) -> None:
    assert [event.id for event in run] == [0, 2, 4, 5, 6]
    assert len(run) == 5
    assert run.state == "OPEN"
    assert run.sources == ["1.0", "2.5"]
    with pytest.raises(KeyError, match="9"):
        run.event(9)
    with pytest.raises(KeyError):
        run.event(1)


def test_fragments_have_the_shapes_that_their_sources_state(run: thalweg.Run) -> None:
    event = run.event(4)
    np.testing.assert_array_equal(event["1.0"].array, SAMPLES + 4)
    np.testing.assert_array_equal(event["2.5"].array, IMAGE)
    assert event["1.0"].array.dtype == np.int16
    assert event["2.5"].array.dtype == np.uint16
    assert event["2.5"].payload.shape == (24,)


OF_ARRAY, OF_SAMPLES, OF_IMAGE, CI16, F32, U8 = 3 << 8, 1 << 8, 2 << 8, 21, 10, 0


@pytest.mark.parametrize(
    ("payload_type", "name", "stated", "array"),
    [
        (OF_ARRAY | F32, "array-f32", [2, 3, 4], np.arange(24, dtype="<f4").reshape(2, 3, 4)),
        (OF_ARRAY | F32, "array-f32", [2, 3, 4], np.arange(12, dtype="<f4").reshape(1, 3, 4)),
        (OF_ARRAY | F32, "array-f32", None, np.arange(5, dtype="<f4")),
        (OF_SAMPLES | CI16, "samples-ci16", [4, 2], np.zeros((3, 2), [("r", "<i2"), ("i", "<i2")])),
        (OF_IMAGE | U8, "image-u8", [2, 2, 3], np.arange(12, dtype="u1").reshape(2, 2, 3)),
    ],
)
def test_arrays_have_the_type_of_their_header_and_the_shape_of_their_source(
    tmp_path: Path, payload_type: int, name: str, stated: list[int] | None, array: Any
) -> None:
    record = Record(0, "1.0", array.tobytes(), payload_type)
    description = {} if stated is None else {"shape": stated}
    run = thalweg.open(write_run(tmp_path / "run", [block(7, 0, [record], [(0, 1, 1, 0)])], {"1.0": description}))
    fragment = run.event(0)["1.0"]
    assert fragment.payload_type == name
    assert fragment.array.dtype == array.dtype
    np.testing.assert_array_equal(fragment.array, array)


def test_what_a_camera_says_of_an_image_is_apart_from_it(tmp_path: Path) -> None:
    image = np.arange(12, dtype="u1").reshape(3, 4)
    chunks = [(0x1000, image.tobytes()), (0x2001, b"\0\0\0\7"), (0x2002, b"")]
    payload = b"".join(data + number.to_bytes(4, "big") + len(data).to_bytes(4, "big") for number, data in chunks)
    records = [Record(0, "1.0", payload, OF_IMAGE | U8), Record(1, "1.0", image.tobytes(), OF_IMAGE | U8)]
    records.append(Record(2, "1.0", payload + b"\xff", OF_IMAGE | U8))
    blocks = [block(7, 0, records, [(0, 1, 3, 0)])]
    run = thalweg.open(write_run(tmp_path / "run", blocks, {"1.0": {"shape": [3, 4]}}))
    fragment = run.event(0)["1.0"]
    np.testing.assert_array_equal(fragment.array, image)
    assert fragment.chunks == {0x2001: b"\0\0\0\7", 0x2002: b""}
    assert fragment.payload.tobytes() == payload
    alone = run.event(1)["1.0"]
    np.testing.assert_array_equal(alone.array, image)
    assert alone.chunks == {}
    with pytest.raises(thalweg.RunError, match="is not an image of 4 x 3 pixels"):
        _ = run.event(2)["1.0"].array


def test_header_fields_are_attributes(run: thalweg.Run) -> None:
    fragment = run.event(2)["1.0"]
    assert (fragment.run, fragment.event, fragment.source, fragment.sequence) == (7, 2, "1.0", 5)
    assert (fragment.timestamp, fragment.window, fragment.status) == (1002, 0, ["simulated"])
    assert fragment.payload_crc == crc32c((SAMPLES + 2).tobytes())
    assert fragment.verify()
    assert run.event(2).timestamp == 1002
    assert run.event(2)["2.5"].window == 5


def test_a_source_of_which_nothing_came_is_named(run: thalweg.Run) -> None:
    event = run.event(5)
    assert not event.complete
    assert event.status == "incomplete"
    assert event.missing == {"2.5": "timed-out"}
    assert event.timestamp == 1005
    assert repr(event) == "<thalweg.Event 5 of run 7: incomplete, 1.0; missing 2.5>"


def test_what_is_missing_is_no_empty_array(run: thalweg.Run) -> None:
    event = run.event(5)
    assert [source for source, _ in event.items()] == event.keys() == list(event) == ["1.0"]
    assert len(event) == len(event.values()) == 1
    assert "2.5" not in event
    assert event.get("2.5") is event.get("n2.5") is None
    with pytest.raises(KeyError, match=r"event 5 has nothing of source 2\.5 .*timed-out"):
        event["n2.5"]


def test_a_source_that_has_nothing_to_say_is_not_missing(run: thalweg.Run) -> None:
    event = run.event(6)
    assert event.complete
    assert event.missing == {}
    assert event["2.5"].status == ["empty"]
    assert event["2.5"].array.shape == (0, 4)


def test_a_block_that_is_damaged_ends_what_can_be_read(tmp_path: Path) -> None:
    blocks = [block(7, number, both(number), [(number, 1, 1, 0)]) for number in range(3)]
    for damaged in ("cut off", "changed"):
        third = blocks[2][:-1] if damaged == "cut off" else blocks[2][:70] + b"!" + blocks[2][71:]
        run = thalweg.open(write_run(tmp_path / damaged, [*blocks[:2], third], SOURCES))
        assert [event.id for event in run] == [0, 1]


def test_following_a_run_whose_writer_died_ends(tmp_path: Path) -> None:
    blocks = [block(7, number, both(number), [(number, 1, 1, 0)]) for number in range(3)]
    run = thalweg.open(write_run(tmp_path / "dead", blocks, SOURCES))
    with pytest.warns(thalweg.DamageWarning, match="of the run died: the run was not closed"):
        assert [event.id for event in run.follow()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("payload_type", "size", "description", "message"),
    [
        (SAMPLES_I16, 10, {"channels": 4}, "10 bytes is not 16-bit samples of 4 channels"),
        (SAMPLES_I16, 3, {}, "3 bytes"),
        (SAMPLES_I16, 4, {"channels": 0}, "0 channels"),
        (IMAGE_U8, 24, {"width": 4, "height": 3}, "an image of 4 x 3 pixels"),
        (IMAGE_U8, 12, {}, "width and height"),
        (IMAGE_U8, 12, {"shape": [2, 3]}, "an image of 3 x 2 pixels of u8"),
        (OF_ARRAY | F32, 10, {"shape": [2, 3]}, "an array of up to 2 x 3 of f32"),
        (OF_ARRAY | F32, 36, {"shape": [2, 3]}, "an array of up to 2 x 3 of f32"),
        (OF_ARRAY | F32, 10, {"shape": [1] * 9}, "10 bytes is not an array of f32"),
        (SAMPLES_I16, 4, {"shape": "wide", "channels": 3}, "samples of 3 channels"),
        (OF_ARRAY | F32, 8, {"shape": [1 << 62, 1 << 62]}, "is not an array"),
    ],
)
def test_a_payload_that_does_not_fit_its_description_is_an_error(
    tmp_path: Path, payload_type: int, size: int, description: dict[str, Any], message: str
) -> None:
    record = Record(0, "1.0", bytes(size), payload_type)
    run = thalweg.open(write_run(tmp_path / "run", [block(7, 0, [record], [(0, 1, 1, 0)])], {"1.0": description}))
    with pytest.raises(thalweg.RunError, match=message):
        _ = run.event(0)["1.0"].array
    assert run.event(0)["1.0"].payload.tobytes() == bytes(size)
