#!/usr/bin/env python3
"""Plots the size of a bunch along the beam, from six cameras: python examples/bunch_shape.py RUN [PICTURE]."""

from __future__ import annotations

import sys

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

import thalweg

# Positions of the cameras along the beam, in metres.
STATIONS = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]


def main() -> None:
    """Reads the fits of a run, plots them, and prints the mean values."""
    path, picture = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "bunch.svg"
    with thalweg.open(path) as run:
        table, origin = run.features(), data_origin(run)
    if table.empty:
        sys.exit(f"{path}: the run has no events to plot")
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    for axis, name in [("sigma_major_mm", "longer axis"), ("sigma_minor_mm", "shorter axis")]:
        columns = [table[f"beam-{number}.{axis}"] for number in range(len(STATIONS))]
        mean, std = [column.mean() for column in columns], [column.std() for column in columns]
        axes.errorbar(STATIONS, mean, std, marker="o", capsize=3, label=name)
        print(f"{name}: " + ", ".join(f"{value:.3f}" for value in mean) + " mm")
    axes.set(xlabel="along the beam (m)", ylabel="sigma (mm)", ylim=(0, None))
    axes.set_title(f"{len(table)} bunches, mean and scatter{origin}")
    axes.legend()
    figure.savefig(picture)
    print(f"written to {picture}")


def data_origin(run: thalweg.Run) -> str:
    """Returns the statuses "simulated" and "replayed" of the data and the comment of the run, in brackets."""
    statuses = {status for event in run[:1] for fragment in event.values() for status in fragment.status}
    # Emulated cameras send images as real ones do: only the comment of the run states that they are simulated.
    words = [*sorted(statuses & {"simulated", "replayed"}), *([run.comment] if run.comment else [])]
    return f" ({'; '.join(dict.fromkeys(words))})" if words else ""


if __name__ == "__main__":
    main()
