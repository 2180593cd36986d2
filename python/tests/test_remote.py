"""Runs on a server, compared with the runs on disk."""

from __future__ import annotations

import gc
import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from conftest import free_port

import thalweg

if TYPE_CHECKING:
    from conftest import Writer, Written


def same_events(one: thalweg.Run, other: thalweg.Run) -> None:
    """Compares all events of two runs byte by byte."""
    assert len(one) == len(other)
    for event, again in zip(one, other, strict=True):
        assert (event.id, event.status, event.keys()) == (again.id, again.status, again.keys())
        for fragment, copy in zip(event.values(), again.values(), strict=True):
            assert repr(fragment) == repr(copy)
            assert fragment.timestamp == copy.timestamp
            np.testing.assert_array_equal(fragment.array, copy.array)
            assert copy.verify()


def test_a_run_on_a_server_equals_the_run_on_disk(model: Written, serve: Callable[..., str]) -> None:
    here = thalweg.open(model.directory)
    base = serve(model.directory.parent)
    for url in (f"{base}/runs/{here.number}", f"{base}/runs/{here.number}/", f"{base}/{model.directory.name}"):
        run = thalweg.open(url)
        assert run.path == url.rstrip("/")
        assert (run.info, run.state, run.nbytes) == (here.info, "COMPLETE", here.nbytes)
        same_events(here, run)
    with pytest.raises(KeyError):
        run.event(10**9)


def test_a_part_of_a_run(model: Written, serve: Callable[..., str]) -> None:
    base = serve(model.directory.parent)
    for run in (thalweg.open(model.directory), thalweg.open(f"{base}/runs/{model.report['run']}")):
        ids = run.ids()
        assert ids.dtype == np.uint64
        assert ids.tolist() == [event.id for event in run]
        assert [event.id for event in run.events("7..10")] == [7, 8, 9]
        assert [event.id for event in run.events("..3")] == [0, 1, 2]
        assert [event.id for event in run.events(int(ids[-1]))] == [ids[-1]]
        assert list(run.events(f"{10**9}..")) == []
        second = run.info["sources"][1]["name"]
        for sources in (["1.1"], [second]):
            (event,) = run.events(7, sources=sources)
            assert event.keys() == ["1.1"]
        with pytest.raises(KeyError, match="unknown"):
            run.events(sources=["unknown"])


def test_an_array_outlives_run_and_server(model: Written, serve: Callable[..., str], tmp_path: Path) -> None:
    copy = shutil.copytree(model.directory, tmp_path / model.directory.name)
    run = thalweg.open(f"{serve(tmp_path)}/{copy.name}")
    fragment = run.event(1)["1.0"]
    array, payload = fragment.array, fragment.payload
    assert np.shares_memory(array, payload)
    assert np.shares_memory(payload, run.event(1)["1.0"].payload), "what is in use is not fetched again"
    before = array.copy()
    del run, fragment
    shutil.rmtree(copy)
    gc.collect()
    np.testing.assert_array_equal(array, before)


def test_a_run_is_followed_on_a_server(writer: Writer, serve: Callable[..., str]) -> None:
    url = f"{serve(writer.directory.parent)}/{writer.directory.name}"
    events = thalweg.open(url).follow()
    seen = {next(events).id for _ in range(100)}
    assert thalweg.open(url).state == "OPEN"
    report = writer.stop()
    seen |= {event.id for event in events}
    assert len(seen) == report["events"]["built"]
    same_events(thalweg.open(writer.directory), thalweg.open(url))


def test_a_run_that_is_being_recorded_can_be_opened(writer: Writer, serve: Callable[..., str]) -> None:
    url = f"{serve(writer.directory.parent)}/{writer.directory.name}"
    next(thalweg.open(url).follow())
    run = thalweg.open(url)
    assert run.state == "OPEN"
    assert len(run) > 0
    assert [event.id for event in run] == run.ids().tolist()


def test_a_run_that_cannot_be_opened_is_an_error_with_the_reason(
    model: Written, serve: Callable[..., str], tmp_path: Path
) -> None:
    base = serve(model.directory.parent)
    with pytest.raises(thalweg.RunError, match=r"runs/4711 is not a run"):
        thalweg.open(f"{base}/runs/4711")
    unused_port = free_port()
    with pytest.raises(thalweg.RunError, match=f"127.0.0.1:{unused_port}"):
        thalweg.open(f"http://127.0.0.1:{unused_port}/runs/1", timeout=0)
    with pytest.raises(thalweg.RunError, match=r"not a URL"):
        thalweg.open("http:///runs/1")
    with pytest.raises(ValueError, match="on a server"):
        thalweg.open(model.directory, token="secret")
    with pytest.raises(ValueError, match="timeout"):
        thalweg.open(base, timeout=-1)


def test_a_token_gives_access_to_its_directory(
    model: Written, serve: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tmp_path / "tokens.toml"
    digest = hashlib.sha256(b"open sesame").hexdigest()
    tokens.write_text(f'[[token]]\nsha256 = "{digest}"\npath = "/"\n')
    url = f"{serve(model.directory.parent, '--tokens', tokens)}/runs/{model.report['run']}"
    for wrong in (None, "another"):
        with pytest.raises(thalweg.RunError, match="401"):
            thalweg.open(url, token=wrong)
    assert len(thalweg.open(url, token="open sesame")) == model.report["events"]["built"]
    monkeypatch.setenv("THALWEG_TOKEN", "open sesame")
    assert len(thalweg.open(url)) == model.report["events"]["built"]


def test_the_certificate_of_a_server_is_checked(model: Written, serve: Callable[..., str], tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=test"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run(command, check=True, capture_output=True)
    base = serve(model.directory.parent, "--certificate", certificate, "--key", key)
    url = f"{base}/runs/{model.report['run']}"
    assert url.startswith("https://")
    with pytest.raises(thalweg.RunError, match="certificate"):
        thalweg.open(url, timeout=0)
    same_events(thalweg.open(model.directory), thalweg.open(url, ca_file=certificate))
