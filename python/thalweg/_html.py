"""HTML representation of a run, for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from thalweg import Run

_ALWAYS = ("accepted", "recorded", "unaccounted")
_NO_COUNTS = ("source", "name", "bytes", "final_counters", "cpu_ms")


def run(run: Run) -> str:
    """Returns HTML with the run's state, start time, reasons and ledger.

    Columns of the ledger that are 0 for every source are left out, except accepted, recorded and unaccounted.
    """
    info = run.info
    events = info["events"]
    writing = {True: ", being written", False: ", its writer died", None: ""}[run.writing]
    state = f"<b>{escape(run.state)}</b>{writing if run.state == 'OPEN' else ''}"
    counts = f"{len(run):,} events ({events['incomplete']:,} incomplete), {run.nbytes / 1e6:,.1f} MB"
    began = np.datetime_as_string(run.began_utc, unit="s").replace("T", " ")
    lines = [f"run {run.number}: {state}", f"{counts}, began {began} UTC", f"<code>{escape(run.path)}</code>"]
    if run.comment:
        lines.append(escape(run.comment))
    if run.metadata:
        lines.append(escape(", ".join(f"{key} = {value}" for key, value in run.metadata.items())))
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in run.reasons)
    if run.state != "OPEN":
        if (lost := events["built"] - len(run)) > 0:
            lines.append(f"<b>DAMAGED</b>: {lost:,} of {events['built']:,} events are missing")
        lines.append("State as written to run.json; <code>thalweg verify</code> checks the data.")
    return (
        f"<div><p>{'<br>'.join(lines)}</p>"
        + (f"<ul>{reasons}</ul>" if reasons else "")
        + _ledger(info["ledger"] or [], run.names)
        + "</div>"
    )


def _ledger(ledger: list[dict[str, Any]], names: dict[str, str]) -> str:
    """Returns HTML with the ledger, or the list of sources if there is none yet."""
    if not ledger:
        listed = "".join(f"<li>{escape(source)} {escape(name)}</li>" for source, name in names.items())
        return f"<p>The ledger is written when the run ends. Sources:</p><ul>{listed}</ul>"
    counts = [key for key in ledger[0] if key not in _NO_COUNTS]
    columns = [key for key in counts if key in _ALWAYS or any(line.get(key) for line in ledger)]
    # Accepted and recorded first, unaccounted last.
    columns.sort(key=lambda key: (_ALWAYS.index(key) if key in _ALWAYS[:2] else 2, key == "unaccounted"))
    head = "".join(f"<th>{escape(column.replace('_', ' '))}</th>" for column in ("source", "name", *columns))
    rows = []
    for line in ledger:
        cells = "".join(f"<td>{escape(str(line.get(key, '')))}</td>" for key in ("source", "name"))
        # Without the final counters of a source, its number of accepted fragments is a lower limit.
        least = "" if line.get("final_counters", True) else "≥ "
        for key in columns:
            count = line.get(key, 0)
            shown = f"{least if key == 'accepted' else ''}{count:,}" if isinstance(count, int) else escape(str(count))
            cells += f'<td style="text-align: right">{shown}</td>'
        rows.append(f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
