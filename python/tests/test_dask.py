"""Runs as Dask collections."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from handmade import MISSING, NO_PAYLOAD_CRC, SAMPLES_I16, TIMED_OUT, Record, block, write_run

import thalweg

if TYPE_CHECKING:
    from conftest import Written

pytest.importorskip("dask", reason="Dask is not installed")

import thalweg.dask


@pytest.fixture(scope="module")
def urls(model: Written, serve: Callable[..., str]) -> list[str]:
    """The same run here and on a server."""
    return [str(model.directory), f"{serve(model.directory.parent)}/runs/{model.report['run']}"]


def total(event: thalweg.Event) -> tuple[int, int]:
    """An event's number, and what all its samples add up to."""
    return event.id, sum(int(fragment.array.sum(dtype=np.int64)) for fragment in event.values())


def test_every_event_is_read_once_whatever_the_parts(urls: list[str]) -> None:
    expected = [total(event) for event in thalweg.open(urls[0])]
    for url in urls:
        assert thalweg.dask.events(url).npartitions == 1
        for chunk in (1000, 100, 37):
            bag = thalweg.dask.events(url, chunk=chunk)
            assert bag.npartitions == -(-len(expected) // chunk)
            assert bag.map(total).compute(scheduler="threads") == expected


def test_sources_are_chosen_by_id_or_name(urls: list[str]) -> None:
    name = thalweg.open(urls[0]).info["sources"][2]["name"]
    for sources in (["1.2"], [name]):
        keys = thalweg.dask.events(urls[1], chunk=100, sources=sources).map(lambda event: event.keys())
        assert set(map(tuple, keys.compute(scheduler="threads"))) == {("1.2",)}
    with pytest.raises(KeyError, match="nobody"):
        thalweg.dask.events(urls[0], sources=["nobody"])
    with pytest.raises(ValueError, match="no part"):
        thalweg.dask.events(urls[0], chunk=0)


def test_a_source_is_an_array(urls: list[str]) -> None:
    expected = np.stack([event["1.1"].array for event in thalweg.open(urls[0])])
    for url in urls:
        array = thalweg.dask.array(url, "1.1", chunk=64)
        assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
        assert array.chunks[0][0] == 64
        np.testing.assert_array_equal(array.compute(scheduler="threads"), expected)
        mean = array[10:20].mean(axis=0).compute(scheduler="threads")
        np.testing.assert_allclose(mean, expected[10:20].mean(axis=0))


def test_an_event_goes_to_another_process_by_value(urls: list[str], tmp_path: Path) -> None:
    for url in urls:
        event = thalweg.open(url).event(3)
        copy = pickle.loads(pickle.dumps(event))
        assert (repr(copy), copy.run, copy.complete, copy.timestamp) == (repr(event), event.run, True, event.timestamp)
        for source, fragment in event.items():
            assert repr(copy[source]) == repr(fragment)
            assert copy[source].verify()
            np.testing.assert_array_equal(copy[source].array, fragment.array)
    with pytest.raises(thalweg.RunError, match="not a pickled fragment"):
        thalweg._thalweg._event(1, 3, True, [(b"x" * 100, "", [], {"features": [], "failures": []})])


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Dask cluster of two processes, which everything is computed on."""
    distributed = pytest.importorskip("distributed", reason="Dask's distributed is not installed")
    if multiprocessing.get_start_method(allow_none=True) not in (None, "fork", "forkserver", "spawn"):
        pytest.skip("no way to start processes")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None) as started,
        distributed.Client(started),
    ):
        yield


@pytest.mark.usefixtures("cluster")
def test_workers_of_a_cluster_open_the_run_themselves(urls: list[str]) -> None:
    expected = [total(event) for event in thalweg.open(urls[0])]
    samples = np.stack([event["1.0"].array for event in thalweg.open(urls[0])])
    for url in urls:
        assert thalweg.dask.events(url, chunk=50).map(total).compute() == expected
        np.testing.assert_array_equal(thalweg.dask.array(url, "1.0", chunk=50).compute(), samples)
        events = thalweg.dask.events(url, chunk=50).take(3)
        assert [total(event) for event in events] == expected[:3]


def ragged(directory: Path, second: Record) -> Path:
    """A run of two events, whose first has two samples."""
    first = Record(0, "1.0", bytes(4), SAMPLES_I16)
    return write_run(directory, [block(7, 0, [first, second], [(0, 1, 2, 0)])], {"1.0": {}})


def test_fragments_of_another_shape_are_named(tmp_path: Path) -> None:
    run = ragged(tmp_path / "run", Record(1, "1.0", bytes(6), SAMPLES_I16))
    assert thalweg.dask.array(run, "1.0", chunk=1)[0].compute(scheduler="threads").shape == (2, 1)
    with pytest.raises(ValueError, match=r"event 1: source 1.0 has \(3, 1\) of int16 .*, not \(2, 1\) of int16"):
        thalweg.dask.array(run, "1.0").compute(scheduler="threads")


def test_a_fragment_that_is_missing_is_named(tmp_path: Path) -> None:
    run = ragged(tmp_path / "run", Record(1, "1.0", status=MISSING | TIMED_OUT | NO_PAYLOAD_CRC))
    with pytest.raises(ValueError, match=r"event 1: source 1.0 is missing \(timed-out\)"):
        thalweg.dask.array(run, "1.0").compute(scheduler="threads")
    assert thalweg.dask.events(run).map(len).compute(scheduler="threads") == [1, 0]


def test_events_that_cannot_be_read_are_passed_over_where_that_is_asked_for(tmp_path: Path) -> None:
    first = block(7, 0, [Record(0, "1.0", b"ab", SAMPLES_I16)], [(0, 1, 2, 0)])
    run = write_run(tmp_path / "run", [first], {"1.0": {}})
    with pytest.raises(thalweg.RunError, match="event 1 has 0 of the 1 records"):
        thalweg.dask.events(run).compute(scheduler="threads")
    with pytest.warns(thalweg.DamageWarning, match="event 1 cannot be read"):
        assert thalweg.dask.events(run, errors="warn").count().compute(scheduler="threads") == 1


def test_a_run_without_events_is_an_empty_bag(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [], {"1.0": {}})
    assert thalweg.dask.events(run).compute(scheduler="threads") == []
    with pytest.raises(ValueError, match="has no events"):
        thalweg.dask.array(run, "1.0")
