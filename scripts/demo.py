"""The demonstration behind `make demo`: a radio telescope's recording goes through the whole path and comes back.

Plays a VDIF recording out of the PyPI package `baseband`, one source for each of its threads, into a run on disk;
verifies the run; reads it back and checks that baseband decodes from it exactly the samples that it decodes from the
original file; and draws one picture of the run.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import baseband.data
import matplotlib.pyplot as plt
import numpy as np
from baseband import vdif
from numpy.typing import NDArray

import thalweg

ROOT = Path(__file__).resolve().parent.parent
# After Okabe and Ito's palette, which nearly everyone can tell apart; its yellow is too pale for a line.
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6D1F", "#000000"]


def main() -> None:
    """Record, verify, compare, draw."""
    options = arguments()
    recording = Path(baseband.data.SAMPLE_VDIF)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)

    run_directory = record(options.thalweg, recording, options.duration, out)
    step(f"{options.thalweg} verify {run_directory}")
    if subprocess.run([options.thalweg, "verify", run_directory], check=False).returncode != 0:
        sys.exit(f"{run_directory} does not verify")

    original = Recording.read(recording)
    run = thalweg.open(run_directory)
    step(f"reading {run_directory} back in Python")
    seen = compare(run, original)
    print(
        f"{seen.fragments} fragments of {len(seen.sources)} sources are, byte by byte, frames of {recording.name}, "
        f"in their order.\nFrom the run, baseband decodes the same {seen.samples} samples per thread as from the file."
    )
    picture = out / f"{run_directory.name}.png"
    draw(run, seen, recording, picture)
    print(f"\nThe picture: {picture}")


def record(program: str, recording: Path, duration: str, out: Path) -> Path:
    """Runs `thalweg demo` on the recording, and returns the run's directory."""
    before = set(out.glob("run-*"))
    command = [program, "demo", "--input", str(recording), "--duration", duration, "--out", str(out)]
    step(" ".join(command))
    if (code := subprocess.run(command, check=False).returncode) != 0:
        sys.exit(code)
    (directory,) = (path for path in set(out.glob("run-*")) - before if path.is_dir())
    return directory


@dataclass
class Recording:
    """The original file as baseband reads it: the frames of each thread in their order, and their samples."""

    frames: dict[int, list[bytes]]
    samples: NDArray[np.float32]
    sample_rate: float
    thread_ids: list[int]

    @staticmethod
    def read(path: Path) -> Recording:
        """Takes the file apart with baseband alone."""
        frames = defaultdict(list)
        whole = path.read_bytes()
        with quiet(), vdif.open(str(path), "rb") as file:
            while (at := file.tell()) < len(whole):
                header = file.read_frame().header
                frames[header["thread_id"]].append(whole[at : at + header.frame_nbytes])
        with quiet(), vdif.open(str(path), "rs") as stream:
            samples, rate = stream.read(), stream.sample_rate.to_value("Hz")
            threads = list(stream.info().get("file_info", {}).get("thread_ids", sorted(frames)))
        return Recording(dict(frames), samples, rate, threads)


@dataclass
class Seen:
    """What was found in the run."""

    sources: dict[str, int]
    fragments: int = 0
    samples: int = 0
    # Per source, (first, last) seconds of unbroken stretches of complete and of missing fragments.
    stretches: dict[str, dict[bool, list[list[float]]]] = field(default_factory=dict)
    decoded: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    sample_rate: float = 0.0


def compare(run: thalweg.Run, original: Recording) -> Seen:
    """Holds every fragment of the run against the recording. Ends the program at the first that differs."""
    described = {source["id"]: source["description"] for source in run.info["sources"]}
    seen = Seen({source: described[source]["thread"] for source in run.sources}, sample_rate=original.sample_rate)
    # Frames as NumPy arrays, so that comparing costs no Python loop over bytes.
    frames = {thread: [np.frombuffer(f, np.uint8) for f in listed] for thread, listed in original.frames.items()}
    first: dict[int, list[bytes]] = defaultdict(list)
    seen.stretches = {source: {True: [], False: []} for source in run.sources}
    origin = None
    for event in run:
        if event.timestamp is None:
            continue
        origin = event.timestamp if origin is None else origin
        at = (event.timestamp - origin) * 1e-9
        for source in event.missing:
            stretch(seen.stretches[source][False], at, max(it.window for it in event.values()) * 1e-9)
        for source, fragment in event.items():
            thread = seen.sources[source]
            stretch(seen.stretches[source][True], at, fragment.window * 1e-9)
            listed = frames[thread]
            if not np.array_equal(fragment.array, listed[event.id % len(listed)]):
                sys.exit(f"event {event.id}, source {source}: not the frame of thread {thread} that it should be")
            if len(first[thread]) < len(listed):
                first[thread].append(fragment.payload.tobytes())
            seen.fragments += 1
    # The frames of the first pass, as the run has them, make a file again; baseband reads it.
    file = io.BytesIO(b"".join(frame for together in zip(*first.values(), strict=True) for frame in together))
    with quiet(), vdif.open(file, "rs") as stream:
        decoded = stream.read()
    if not np.array_equal(decoded, original.samples):
        sys.exit("baseband decodes other samples from the run than from the recording")
    seen.samples = len(decoded)
    seen.decoded = {thread: decoded[:, column] for column, thread in enumerate(original.thread_ids)}
    return seen


def stretch(stretches: list[list[float]], at: float, window: float) -> None:
    """Makes the last stretch longer where the next fragment follows without a gap, or begins a new one."""
    if stretches and at - stretches[-1][1] < 1.5 * window:
        stretches[-1][1] = at + window
    else:
        stretches.append([at, at + window])


# --- the picture -----------------------------------------------------------------------------------------------------


def draw(run: thalweg.Run, seen: Seen, recording: Path, picture: Path) -> None:
    """One page: what the telescope saw, and what became of it."""
    plt.rcParams.update(
        {
            "font.size": 9,
            "axes.titlesize": 10,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#e6e6e6",
            "axes.axisbelow": True,
        }
    )
    figure, axes = plt.subplots(2, 2, figsize=(12, 7.6), layout="constrained", width_ratios=[1.25, 1])
    figure.suptitle(
        f"{recording.name} (radio telescope, {len(seen.sources)} threads of {seen.sample_rate / 1e6:g} million 2-bit "
        f"samples a second), replayed",
        fontsize=13,
        fontweight="bold",
    )
    threads = sorted(seen.decoded)
    draw_samples(axes[0, 0], seen, threads)
    draw_spectra(axes[0, 1], seen, threads)
    draw_timeline(axes[1, 0], run, seen)
    draw_levels(axes[1, 1], seen, threads)
    totals, ledger = run.info["totals"], run.info["ledger"]
    figure.supxlabel(
        f"{Path(run.path).name}: {run.state}; {len(run)} events of {len(seen.sources)} fragments in "
        f"{totals['seconds']:.1f} s, {totals['bytes'] / totals['seconds'] / 1e6:.0f} MB/s; "
        f"fragments unaccounted for: {sum(source['unaccounted'] for source in ledger)}",
        fontsize=10,
        color="#444444",
    )
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def draw_samples(axes: plt.Axes, seen: Seen, threads: list[int]) -> None:
    """The first microseconds of every thread."""
    count = 96
    microseconds = np.arange(count) / seen.sample_rate * 1e6
    for row, thread in enumerate(threads):
        trace = seen.decoded[thread][:count] / 9.0 + row
        axes.step(microseconds, trace, where="post", color=COLOURS[row % len(COLOURS)], linewidth=1.0)
    axes.set(
        title=f"The first {count / seen.sample_rate * 1e6:g} µs, as decoded from the run",
        xlabel="time, µs",
        yticks=range(len(threads)),
        yticklabels=[f"thread {thread}" for thread in threads],
        xlim=(0, microseconds[-1]),
    )


def draw_spectra(axes: plt.Axes, seen: Seen, threads: list[int]) -> None:
    """Averaged power spectra: Hann window, half overlapping pieces (Welch, 1967)."""
    length = 512
    window = np.hanning(length)
    frequency = np.fft.rfftfreq(length, 1 / seen.sample_rate) / 1e6
    for row, thread in enumerate(threads):
        pieces = np.lib.stride_tricks.sliding_window_view(seen.decoded[thread], length)[:: length // 2]
        power = np.mean(np.abs(np.fft.rfft(pieces * window, axis=1)) ** 2, axis=0) / np.sum(window**2)
        # The lowest bins hold the digitizer's offset, not the sky.
        decibel = 10 * np.log10(power[2:])
        axes.plot(frequency[2:], decibel, color=COLOURS[row % len(COLOURS)], linewidth=1.0, label=f"{thread}")
    axes.set(title="Power spectra", xlabel="frequency in the band, MHz", ylabel="power, dB", xlim=(0, frequency[-1]))
    axes.legend(title="thread", ncols=4, fontsize=8, title_fontsize=8, frameon=False, loc="lower center")


def draw_timeline(axes: plt.Axes, run: thalweg.Run, seen: Seen) -> None:
    """Which stretches of time are there, source by source."""
    rows = list(seen.sources)
    for row, source in enumerate(rows):
        for there, colour in ((True, "#009E73"), (False, "#D55E00")):
            bars = [(begin, end - begin) for begin, end in seen.stretches[source][there]]
            axes.broken_barh(bars, (row - 0.32, 0.64), color=colour)
    axes.set(
        title="Events by the recording's clock: green is there, red is missing",
        xlabel="time since the first event, s",
        yticks=range(len(rows)),
        yticklabels=[f"source {source}" for source in rows],
    )
    axes.margins(x=0.01)


def draw_levels(axes: plt.Axes, seen: Seen, threads: list[int]) -> None:
    """How often each of the four 2-bit levels occurs."""
    names = ["-high", "-low", "+low", "+high"]
    levels = np.unique(np.concatenate([seen.decoded[thread] for thread in threads]))
    width = 0.8 / len(threads)
    for row, thread in enumerate(threads):
        shares = [100 * np.mean(seen.decoded[thread] == level) for level in levels]
        places = np.arange(len(levels)) + (row - (len(threads) - 1) / 2) * width
        axes.bar(places, shares, width * 0.9, color=COLOURS[row % len(COLOURS)])
    axes.set(
        title="How often each 2-bit level occurs, by thread",
        xticks=range(len(levels)),
        xticklabels=names if len(levels) == len(names) else [f"{level:g}" for level in levels],
        ylabel="share of samples, %",
    )
    axes.grid(axis="x", visible=False)


def step(text: str) -> None:
    """Prints the next step."""
    print(f"\n▶ {text}", flush=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Without astropy's notes on the age of its leap second table: no date here depends on it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = os.environ.get("THALWEG_BIN", str(ROOT / "target" / "debug" / "thalweg"))
    parser.add_argument("--thalweg", default=default, help="the program")
    parser.add_argument("--duration", default="3s", help="how long to play the recording, over and over")
    parser.add_argument("--out", default="demo", help="where the run and the picture go")
    return parser.parse_args()


if __name__ == "__main__":
    main()
