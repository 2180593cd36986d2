"""Runs and events as Python sequences and mappings: by position and number, sliced, pickled, closed, displayed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from handmade import IMAGE_U8, MISSING, NO_PAYLOAD_CRC, RAW, SAMPLES_I16, TIMED_OUT, Record, block, write_run

import thalweg

if TYPE_CHECKING:
    from conftest import Written

NUMBERS = [3, 5, 7, 20, 21, 22]
CLOSINGS = [(3, 2, 3, 0), (20, 1, 3, 0)]
# 2016-12-31T23:59:59 UTC, the second before a leap second, is 36 s behind TAI.
BEFORE_THE_LEAP = 1_483_228_799_000_000_000 + 36_000_000_000


@pytest.fixture
def gaps(tmp_path: Path) -> Path:
    """Run whose events have the numbers above, and two samples each."""
    records = [Record(event, "1.0", bytes([event, 0, 0, 0]), SAMPLES_I16) for event in NUMBERS]
    return write_run(tmp_path / "run-000007", [block(7, 0, records, CLOSINGS)], {"1.0": {}})


def test_a_run_is_a_sequence_by_position_whatever_the_numbers(gaps: Path) -> None:
    run = thalweg.open(gaps)
    assert len(run) == 6
    assert [run[place].id for place in range(6)] == NUMBERS == run.ids().tolist()
    assert [run[place].id for place in range(-6, 0)] == NUMBERS
    assert run[np.int64(2)].id == 7
    assert [event.id for event in reversed(run)] == NUMBERS[::-1]
    assert run.event(7).id == run.event(np.uint64(7)).id == 7


@pytest.mark.parametrize(
    "part",
    [slice(None), slice(1, 4), slice(-2, None), slice(None, None, -1), slice(5, 0, -2), slice(4, 2), slice(9, 99)],
)
def test_a_slice_is_the_slice_of_a_list(gaps: Path, part: slice) -> None:
    run = thalweg.open(gaps)
    assert [event.id for event in run[part]] == NUMBERS[part]
    assert run[part].ids().tolist() == NUMBERS[part]
    assert len(run[part]) == len(NUMBERS[part])
    for again in (slice(1, None), slice(None, None, -1), slice(None, None, 10**30)):
        assert run[part][again].ids().tolist() == NUMBERS[part][again]


def test_ranges_select_by_number(gaps: Path) -> None:
    run = thalweg.open(gaps)
    for which, expected in [
        (7, [7]),
        (8, []),
        ("5..21", [5, 7, 20]),
        ("..7", [3, 5]),
        ("20..", [20, 21, 22]),
        ("..", NUMBERS),
        (range(5, 8), [5, 7]),
        (range(8, 8), []),
        (np.int64(3), [3]),
        (2**64 - 1, []),
    ]:
        assert [event.id for event in run.events(which)] == expected, which
    for wrong in ("7..7", "1-2", "", range(0, 9, 2), range(-3, 3), -1):
        with pytest.raises(ValueError, match=r"\d|neither"):
            run.events(wrong)
    with pytest.raises(TypeError, match=r"range\(10, 20\)"):
        run.events([1, 2])
    with pytest.raises(ValueError, match=r"'warn'.*'raise'"):
        run.events(errors="ignore")


def test_a_missing_event_is_an_error_that_lists_the_existing_ones(gaps: Path) -> None:
    run = thalweg.open(gaps)
    for place in (6, -7, 10**30):
        with pytest.raises(IndexError, match=r"6 events.*run\.event\(7\)"):
            run[place]
    for wrong in ("7", 7.0, None):
        with pytest.raises(TypeError, match=r"by position.*run\.event\(7\)"):
            run[wrong]
    with pytest.raises(KeyError, match="event 4 is not in run 7: it has 6 events, 3 to 22; its writer died"):
        run.event(4)
    with pytest.raises(ValueError, match="0 to 2"):
        run.event(-1)
    with pytest.raises(TypeError, match="must be an integer, not str"):
        run.event("7")
    with pytest.raises(TypeError, match=r"7 in run\.ids\(\)"):
        assert 7 in run
    assert 7 in run.ids()


def test_names_are_accepted_in_place_of_ids(model: Written) -> None:
    run = thalweg.open(model.directory)
    assert run.names == {"1.0": "model-adc-0", "1.1": "model-adc-1", "1.2": "model-adc-2"}
    for sources in ("model-adc-1", ["model-adc-1"], ("1.1",), iter(["1.1"])):
        assert run.events(7, sources=sources)[0].keys() == ["1.1"]
    assert run[0]["model-adc-2"].source == "1.2"
    some = run.events(sources=["1.0", "1.2"])
    assert some.sources == ["1.0", "1.2"]
    with pytest.raises(KeyError, match=r"1\.1 .*was not selected"):
        some[0]["model-adc-1"]
    with pytest.raises(KeyError, match=r"no source \"unknown\".*1\.0 \(\"model-adc-0\"\)"):
        run[0]["unknown"]
    with pytest.raises(TypeError, match=r"such as '1\.0', not by int"):
        run[0][0]


def test_a_with_block_closes_the_run_and_keeps_what_was_read_before(model: Written) -> None:
    with thalweg.open(model.directory) as run:
        event = run[1]
        samples = event["1.0"].array
    assert samples.sum() == event["1.0"].array.sum()
    for closed in (lambda: run[0], lambda: len(run), lambda: run.info, lambda: iter(run), run.ids, run.__enter__):
        with pytest.raises(ValueError, match="is closed: open it again"):
            closed()
    assert repr(run) == f"<thalweg.Run {model.directory}: closed>"
    run.close()


def test_pickled_runs_are_opened_again_and_events_are_pickled_by_value(
    model: Written, serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.directory.parent)
    here = thalweg.open(model.directory.name)
    there = thalweg.open(f"{serve(model.directory.parent)}/runs/{here.number}", timeout=60.0)
    for run in (here, there):
        parts = (run, run[5:50:5], run.events("10..20", sources="1.1", errors="raise"))
        monkeypatch.chdir("/")
        pickled = [pickle.dumps(item) for item in parts]
        again, part, events = map(pickle.loads, pickled)
        assert again.info == run.info
        assert part.ids().tolist() == run[5:50:5].ids().tolist()
        assert [event.keys() for event in events] == [["1.1"]] * 10
        monkeypatch.chdir(model.directory.parent)
        fragment = pickle.loads(pickle.dumps(run[3]["1.0"]))
        np.testing.assert_array_equal(fragment.array, run[3]["1.0"].array)
        assert copy.deepcopy(run[3])["model-adc-1"].verify()
    with pytest.raises(ValueError, match="fewer events"):
        thalweg._thalweg._events(here, 0, 1, 10**6, None, "warn")
    with pytest.raises(thalweg.RunError, match="not a pickled fragment"):
        thalweg._thalweg._fragment(b"x" * 100, [])


def test_asarray_returns_the_array_and_copies_only_if_needed(gaps: Path) -> None:
    fragment = thalweg.open(gaps)[0]["1.0"]
    assert np.shares_memory(np.asarray(fragment), fragment.array)
    assert not np.asarray(fragment).flags.writeable
    assert np.asarray(fragment, dtype="<i2").dtype == np.int16
    assert np.asarray(fragment, dtype=float).tolist() == [[3.0], [0.0]]
    copied = np.array(fragment)
    assert copied.flags.writeable
    assert not np.shares_memory(copied, fragment.array)
    assert fragment.__array__(copy=False).shape == (2, 1)
    with pytest.raises(ValueError, match="copy=False forbids"):
        fragment.__array__(np.float64, copy=False)
    assert np.mean(fragment) == 1.5


def test_times_are_in_tai_and_utc(model: Written, tmp_path: Path) -> None:
    run = thalweg.open(model.directory)
    fragment = run[0]["1.0"]
    assert fragment.time_tai.dtype == np.dtype("datetime64[ns]")
    assert fragment.time_tai.astype(int) == fragment.timestamp
    assert fragment.time_tai - fragment.time_utc == np.timedelta64(37, "s")
    assert run[0].time_tai == min(fragment.time_tai for fragment in run[0].values())
    assert run.began_tai.astype(int) == run.info["began"]
    assert run.ended_tai.astype(int) == run.info["ended"]
    assert run.ended_utc - run.began_utc == run.ended_tai - run.began_tai

    times = [BEFORE_THE_LEAP + second * 10**9 for second in range(3)] + [0, 2**63 + 10**12]
    records = [Record(event, "1.0", b"x", timestamp=time) for event, time in enumerate(times)]
    leap = thalweg.open(write_run(tmp_path / "leap", [block(7, 0, records, [(0, 1, 5, 0)])], {"1.0": {}}))
    seconds = [str(event["1.0"].time_utc.astype("datetime64[s]")) for event in leap]
    # The leap second has the number of the second after it.
    assert seconds == ["2016-12-31T23:59:59", "2017-01-01T00:00:00", "2017-01-01T00:00:00", "NaT", "NaT"]
    # Event 3 has no time: its timestamp and window are 0.
    assert [str(event["1.0"].time_tai) for event in leap[3:]] == ["NaT", "NaT"]
    assert (leap[3].timestamp, leap[3].time_tai, leap[3].time_utc) == (None, None, None)
    assert str(leap[4].time_tai) == "NaT"
    assert leap.ended_tai is leap.ended_utc is None


def test_every_object_has_a_repr(gaps: Path) -> None:
    run = thalweg.open(gaps)
    assert repr(run) == f"<thalweg.Run {gaps}: OPEN, its writer died, 6 events>"
    assert repr(run[1:3]) == f"<thalweg.Events of {gaps}: 2 events, 5 to 7; sources 1.0>"
    assert repr(run[0:0]) == f"<thalweg.Events of {gaps}: 0 events; sources 1.0>"
    assert repr(run[0]) == "<thalweg.Event 3 of run 7: complete, 1.0>"
    assert repr(run[0]["1.0"]) == "<thalweg.Fragment of event 3, source 1.0: 4 bytes samples-i16, simulated>"
    assert repr(run.follow()) == f"<thalweg.Follow of {gaps}>"


def test_a_notebook_shows_state_reasons_and_ledger(model: Written, gaps: Path) -> None:
    with thalweg.open(model.directory) as run:
        page = run._repr_html_()
    assert run._repr_html_() is None, "a closed run has a repr only"
    built = model.report["events"]["built"]
    assert "<b>COMPLETE</b>" in page
    assert f"{built:,} events (0 incomplete)" in page
    assert "<th>unaccounted</th>" in page
    assert "<th>late</th>" not in page, "what is 0 for all sources is left out"
    assert page.count("<tr>") == 4
    text = (gaps / "run.json").read_text()
    ledger = '[{"source": "1.0", "name": "<b>", "accepted": 9, "recorded": 6, "dropped_newest": 3, "unaccounted": 0}]'
    text = text.replace('"reasons": []', '"reasons": ["3 fragments <dropped>"]').replace(
        '"ledger": []', f'"ledger": {ledger}'
    )
    (gaps / "run.json").write_text(text)
    page = thalweg.open(gaps)._repr_html_()
    assert "<li>3 fragments &lt;dropped&gt;</li>" in page
    assert "&lt;b&gt;" in page
    assert "<th>dropped newest</th>" in page
    assert "its writer died" in page


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Run with samples, images and bytes; the image of event 2 is missing."""
    records = []
    for event in range(3):
        records.append(Record(event, "1.0", bytes([event] * 8), SAMPLES_I16, timestamp=10 + event))
        image = Record(event, "2.0", bytes([event] * 6), IMAGE_U8, timestamp=10 + event)
        records.append(Record(event, "2.0", status=MISSING | TIMED_OUT | NO_PAYLOAD_CRC) if event == 2 else image)
        records.append(Record(event, "3.0", bytes([event] * 5), RAW, timestamp=10 + event))
    sources = {"1.0": {"channels": 2}, "2.0": {"width": 3, "height": 2}, "3.0": {}}
    return write_run(tmp_path / "mixed", [block(7, 0, records, [(0, 1, 2, 0), (2, 1, 1, 1)])], sources)


def test_a_dataframe_has_one_row_per_fragment(mixed: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    run = thalweg.open(mixed)
    table = run.to_dataframe(peak=np.max)
    assert table["event"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert table["name"].tolist() == ["n1.0", "n2.0", "n3.0"] * 2 + ["n1.0", "n3.0"]
    assert table["peak"].tolist() == [0, 0, 0, 257, 1, 1, 514, 2]
    assert table["time_tai"].dtype == "datetime64[ns]"
    assert table["time_tai"].astype("int64").tolist() == [10] * 3 + [11] * 3 + [12] * 2
    assert run.events(0, sources="n2.0").to_dataframe()["nbytes"].tolist() == [6]
    assert len(run[0:0].to_dataframe()) == 0
    with pytest.raises(ValueError, match="a column of that name"):
        run.to_dataframe(event=np.max)
    with pytest.raises(TypeError, match="must be a function"):
        run.to_dataframe(peak=3)


def test_a_dataset_has_a_variable_for_each_source(mixed: Path) -> None:
    pytest.importorskip("xarray", reason="xarray is not installed")
    run = thalweg.open(mixed)
    with pytest.raises(ValueError, match=r"event 2 has no fragment of 2\.0 \(timed-out\): .*missing='drop'"):
        run.to_xarray()
    data = run.to_xarray(missing="drop")
    assert dict(data.sizes) == {"event": 2, "sample": 2, "channel": 2, "row": 2, "column": 3, "byte": 5}
    assert data["n1.0"].dims == ("event", "sample", "channel")
    assert data["n2.0"].dims == ("event", "row", "column")
    assert data["n3.0"].dims == ("event", "byte")
    assert data["n1.0"].sel(event=1).values.tolist() == [[257, 257], [257, 257]]
    assert data["time_tai"].values.astype(int).tolist() == [10, 11]
    assert data["time_tai"].attrs == {"scale": "TAI"}
    assert run.events(sources="1.0").to_xarray()["n1.0"].shape == (3, 2, 2)
    assert dict(run[0:0].to_xarray().sizes) == {"event": 0}
    with pytest.raises(ValueError, match=r"'raise'.*'drop'"):
        run.to_xarray(missing="nan")


def test_irregular_fragments_are_named(tmp_path: Path) -> None:
    pytest.importorskip("xarray", reason="xarray is not installed")
    ragged = [Record(event, "1.0", bytes(2 + 2 * event), SAMPLES_I16) for event in range(2)]
    run = thalweg.open(write_run(tmp_path / "ragged", [block(7, 0, ragged, [(0, 1, 2, 0)])], {"1.0": {}}))
    with pytest.raises(ValueError, match=r"event 1: source 1\.0 has shape \(2, 1\) of int16, not \(1, 1\)"):
        run.to_xarray()
    assert len(run.to_dataframe()) == 2
    two = [Record(0, f"1.{element}", bytes(2 + 2 * element), SAMPLES_I16) for element in range(2)]
    run = thalweg.open(write_run(tmp_path / "two", [block(7, 0, two, [(0, 1, 1, 0)])], {"1.0": {}, "1.1": {}}))
    sizes = dict(run.to_xarray().sizes)
    assert sizes == {"event": 1, "sample": 1, "channel": 1, "sample_n1.1": 2}
