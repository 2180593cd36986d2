"""Run of the model ADC, whose samples can be computed again from (seed, event, source)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import thalweg

if TYPE_CHECKING:
    from conftest import Written


def model_adc(seed: int, source: int, event: int, n: int) -> NDArray[np.int16]:
    """Returns the samples by the formula in the documentation of `thalweg_device::model_adc`."""
    u, gamma = np.uint64, np.uint64(0x9E3779B97F4A7C15)

    def mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
        z = (z ^ (z >> u(30))) * u(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> u(27))) * u(0x94D049BB133111EB)
        return z ^ (z >> u(31))

    key = mix(mix(mix(np.array([seed], u)) ^ u(source)) ^ u(event))
    i = np.arange(n, dtype=u)
    h = mix(key + (i // u(4) + u(1)) * gamma) >> (i % u(4) * u(16))
    noise = u(193) + (h & u(7)) + (h >> u(3) & u(7))
    p = mix(~key + (i // u(1024) + u(1)) * gamma)
    start, height = u(64) + (p & u(511)), u(256) + (p >> u(16) & u(1023)) + (p >> u(32) & u(511))
    t = (i % u(1024)).astype(np.int64) - start.astype(np.int64)
    k = np.clip(t, 0, 175).astype(u)
    rise = height * np.clip(t + 8, 0, 8).astype(u) >> u(3)
    tail = (height >> k // u(16)) * (u(32) - k % u(16)) >> u(5)
    pulse = np.where(t < 0, rise, np.where(t < 176, tail, u(0)))
    return (noise + u(2) * pulse).astype("<i2")


def test_every_sample_equals_that_of_the_model(model: Written) -> None:
    run = thalweg.open(model.directory)
    described = {source["id"]: source["description"] for source in run.info["sources"]}
    expected: dict[tuple[str, int], NDArray[np.int16]] = {}
    for event in run:
        assert event.complete
        for source, fragment in event.items():
            model_of = described[source]
            waveform = event.id % model_of["period"] if model_of["period"] else event.id
            if (source, waveform) not in expected:
                samples = model_adc(model_of["seed"], model_of["source"], waveform, model_of["samples"])
                expected[source, waveform] = samples.reshape(-1, 1)
            np.testing.assert_array_equal(fragment.array, expected[source, waveform])


def test_the_run_agrees_with_the_report_of_the_program(model: Written) -> None:
    run = thalweg.open(str(model.directory))
    assert run.state == model.report["state"] == "COMPLETE"
    assert run.number == model.report["run"]
    assert len(run) == model.report["events"]["built"] > 0
    assert run.path == str(model.directory)
    assert len(run.sources) == 3
    assert run.info["ledger"] == model.report["ledger"]["sources"]
    assert [event.id for event in run] == list(range(len(run)))


def test_an_event_is_a_mapping_from_source_to_fragment(model: Written) -> None:
    run = thalweg.open(model.directory)
    event = run.event(len(run) - 1)
    assert event.id == len(run) - 1
    assert event.run == run.number
    assert event.status == "complete"
    assert event.missing == {}
    assert list(event) == event.keys() == run.sources
    assert len(event) == len(event.values()) == 3
    assert run.sources[1] in event
    assert "7.7" not in event
    assert 1 not in event
    assert event["model-adc-1"].source == event.get("model-adc-1").source == "1.1"
    assert event.get("7.7") is None
    assert event.get("7.7", 3) == 3


def test_a_fragment_carries_its_header(model: Written) -> None:
    run = thalweg.open(model.directory)
    first, second = run.event(0), run.event(1)
    for source in run.sources:
        fragment = second[source]
        assert (fragment.run, fragment.event, fragment.source) == (run.number, 1, source)
        assert fragment.sequence == first[source].sequence + 1
        assert fragment.timestamp >= first[source].timestamp > 1_700_000_000_000_000_000
        assert "simulated" in fragment.status
        assert "replayed" not in fragment.status
        assert fragment.status_bits & 1 << 6
        assert fragment.payload_type == "samples-i16"
        assert fragment.verify()
        assert fragment.nbytes == fragment.payload.nbytes == 10_006
    assert second.timestamp == min(fragment.timestamp for fragment in second.values())
