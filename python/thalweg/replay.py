"""A source that plays an exported file into a run: with the same samples, event numbers and times.

    python -m thalweg.replay run-000042.nxs tcp:127.0.0.1:7700 --source camera --id 1.0

The file, or folder, is what `thalweg export` wrote as nexus, hdf5, parquet, zarr, root or csv; recordings of SigMF are
played by the program itself (device = { kind = "sigmf", ... }). In the topology the source is a [[source]] without a
`device`. Fragments are pushed as fast as the builders take them, with the status `replayed`. Events that the export has
not of this source are left out. Needs pip install thalweg[export].
"""

from __future__ import annotations

import argparse
import csv
import heapq
import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import thalweg
from thalweg.export._reading import Form
from thalweg.export._writer import DESCRIPTION, library

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["Played", "fragments", "replay"]

# Rows that are read at a time, and about so many bytes.
ROWS, BYTES = 4096, 32 << 20
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
# Status bits that a source may set, with their names: docs/wire.md.
STATUS = {0: "truncated", 1: "corrupt", 6: "simulated", 12: "uncertain"}
CLOCKS = ("", "clock-locked", "clock-holdover", "clock-free-running")


class ReplayError(Exception):
    """A file cannot be played: the message says why."""


class Played(NamedTuple):
    """A fragment of an exported file."""

    event: int
    # TAI nanoseconds since 1970.
    timestamp: int
    # Nanoseconds that it covers.
    window: int
    # Status bits: docs/wire.md.
    status: int
    array: NDArray[Any]


class _Stream:
    """Fragments of one form, in a file of one format."""

    source: str
    form: Form

    def longest(self) -> int:
        """Returns the greatest length along the first axis."""
        raise NotImplementedError

    def fragments(self) -> Iterator[Played]:
        """Yields all fragments."""
        raise NotImplementedError


class _Arrays(_Stream):
    """A stream in HDF5 or Zarr: an array of samples, and one of each that is known of a fragment."""

    def __init__(self, group: Any, source: str, form: Form, *, pairs: bool) -> None:
        self._group, self.source, self.form, self._pairs = group, source, form, pairs

    def _parts(self) -> Iterator[tuple[int, int]]:
        count = self._group["event_id"].shape[0]
        size = self.form.dtype.itemsize * int(np.prod(self.form.shape, dtype=np.int64))
        step = max(1, min(ROWS, BYTES // max(size, 1)))
        return ((at, min(at + step, count)) for at in range(0, count, step))

    def longest(self) -> int:
        if self.form.length is not None:
            return self.form.length
        parts = (np.diff(self._group["offsets"][at : end + 1]) for at, end in self._parts())
        return int(max((part.max() for part in parts), default=0))

    def _uneven(self, at: int, end: int) -> Iterator[NDArray[Any]]:
        """Yields the arrays of fragments that differ in their lengths: from one read, or where they are long, each."""
        data, bounds = self._group["data"], self._group["offsets"][at : end + 1].tolist()
        first, rows = bounds[0], bounds[-1] - bounds[0]
        size = rows * data.dtype.itemsize * int(np.prod(data.shape[1:], dtype=np.int64))
        whole = self._typed(data[first : first + rows]) if size <= BYTES else None
        for begin, stop in pairwise(bounds):
            yield self._typed(data[begin:stop]) if whole is None else whole[begin - first : stop - first]

    def _typed(self, values: Any) -> NDArray[Any]:
        array = np.ascontiguousarray(values)
        if self._pairs:
            array = array.view(self.form.dtype).reshape(array.shape[:-1])
        return array.astype(self.form.dtype, copy=False)

    def fragments(self) -> Iterator[Played]:
        group = self._group
        for at, end in self._parts():
            known = [group[name][at:end].tolist() for name in ("event_id", "tai_ns", "window_ns", "status")]
            arrays = self._uneven(at, end) if self.form.length is None else iter(self._typed(group["data"][at:end]))
            yield from map(Played._make, zip(*known, arrays, strict=True))


class _Table(_Stream):
    """A stream in files of rows: Parquet or ROOT."""

    def __init__(self, files: Sequence[Any], source: str, form: Form) -> None:
        self._files, self.source, self.form = files, source, form

    def _shaped(self, flat: NDArray[Any]) -> NDArray[Any]:
        """Returns the array of a fragment, from its numbers."""
        array = np.ascontiguousarray(flat)
        if self.form.dtype.names is not None or self.form.dtype.kind == "c":
            array = array.view(self.form.dtype)
        return array.astype(self.form.dtype, copy=False).reshape(-1, *self.form.row)


class _Parquet(_Table):
    def longest(self) -> int:
        return max((int(rows[0]) for rows in self._column("shape") if len(rows)), default=0)

    def _column(self, name: str) -> Iterator[Any]:
        parquet = library("pyarrow.parquet", "parquet")
        for file in self._files:
            for part in parquet.ParquetFile(file).iter_batches(ROWS, columns=[name]):
                yield from (value.as_py() for value in part.column(0))

    def fragments(self) -> Iterator[Played]:
        parquet = library("pyarrow.parquet", "parquet")
        names = ["event_id", "tai_ns", "window_ns", "status", "data"]
        for file in self._files:
            for part in parquet.ParquetFile(file).iter_batches(64, columns=names):
                *known, data = part.columns
                for *row, value in zip(*(column.to_pylist() for column in known), data, strict=True):
                    if self.form.payload_type in ("raw", "vdif"):
                        flat = np.frombuffer(value.as_buffer() or b"", np.uint8)
                    else:
                        flat = value.values.to_numpy()
                    yield Played._make([*row, self._shaped(flat)])


class _Root(_Table):
    def __init__(self, files: Sequence[Any], name: str, source: str, form: Form) -> None:
        super().__init__(files, source, form)
        self._name = name

    def _parts(self, names: Sequence[str]) -> Iterator[Any]:
        uproot = library("uproot", "root")
        for file in self._files:
            with uproot.open(file) as opened:
                if self._name in opened:
                    entries = opened[self._name]
                    for at in range(0, entries.num_entries, ROWS):
                        yield entries.arrays(list(names), entry_start=at, entry_stop=at + ROWS)

    def longest(self) -> int:
        return max((int(max(part["rows"], default=0)) for part in self._parts(["rows"])), default=0)

    def fragments(self) -> Iterator[Played]:
        is_complex = self.form.dtype.names is not None or self.form.dtype.kind == "c"
        data = ["real", "imaginary"] if is_complex else ["data"]
        for part in self._parts(["event_id", "tai_ns", "window_ns", "status", *data]):
            known = [part[name].to_list() for name in ("event_id", "tai_ns", "window_ns", "status")]
            columns = [part[name] for name in data]
            for at, row in enumerate(zip(*known, strict=True)):
                numbers = [column[at].to_numpy() for column in columns]
                yield Played._make([*row, self._shaped(np.stack(numbers, axis=-1).reshape(-1))])


NUMBER = r"[+-]?(?:nan|inf|[0-9.]+(?:e[+-]?[0-9]+)?)"
COMPLEX = re.compile(rf"({NUMBER})([+-]{NUMBER.removeprefix('[+-]?')})j")


class _Csv(_Stream):
    def __init__(self, file: Path, sources: dict[str, str]) -> None:
        self._file = file
        row = next(self._rows(), None)
        if row is None:
            self.source = ""
            return
        self.source = row["source"]
        letters = row["dtype"]
        complex_whole = letters[0] == "c" and letters[1] in "iu"
        number = np.dtype(f"<{letters[1:]}") if complex_whole else None
        dtype = np.dtype([("r", number), ("i", number)]) if complex_whole else np.dtype(f"<{letters}")
        shape = tuple(int(length) for length in row["shape"].split("x"))
        self.form = Form(row["payload_type"], dtype, shape[1:], None)

    def _rows(self) -> Iterator[dict[str, str]]:
        # Samples of a fragment are one field: longer than Python's limit.
        csv.field_size_limit(sys.maxsize)
        with self._file.open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)

    def longest(self) -> int:
        return max((int(row["shape"].split("x")[0]) for row in self._rows()), default=0)

    def fragments(self) -> Iterator[Played]:
        for row in self._rows():
            event, time, window, status = (int(row[name]) for name in ("event_id", "tai_ns", "window_ns", "status"))
            shape = tuple(int(length) for length in row["shape"].split("x"))
            yield Played(event, time, window, status, self._values(row["data"], len(shape)).reshape(shape))

    def _values(self, text: str, axes: int) -> NDArray[Any]:
        dtype = self.form.dtype
        if dtype == np.uint8 and axes == 1:
            return np.frombuffer(bytes.fromhex(text), np.uint8)
        if dtype.names is None and dtype.kind != "c":
            kind = float if dtype.kind == "f" else int
            return np.array([kind(word) for word in text.split()], dtype)
        found = [COMPLEX.fullmatch(word) for word in text.split()]
        if None in found:
            msg = f"{self._file}: {text[:40]!r} are no complex numbers"
            raise ReplayError(msg)
        if dtype.names is not None:
            return np.array([(int(pair[1]), int(pair[2])) for pair in found if pair], dtype)
        return np.array([complex(float(pair[1]), float(pair[2])) for pair in found if pair], dtype)


def _streams(path: Path) -> tuple[list[_Stream], dict[str, str]]:
    """Returns the streams of a file, and the names of its sources by their ids."""
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(HDF5_SIGNATURE)) == HDF5_SIGNATURE:
                return _hdf5_streams(path)
    elif (path / "zarr.json").exists():
        return _zarr_streams(path)
    elif (path / DESCRIPTION).exists():
        about = json.loads((path / DESCRIPTION).read_text())
        names = {source["id"]: source["name"] for source in about["run"]["sources"]}
        streams: list[_Stream] = []
        if any(path.glob("*.sigmf-meta")):
            msg = f'{path}: recordings of SigMF are played by the program: device = {{ kind = "sigmf", file = ... }}'
            raise ReplayError(msg)
        if files := sorted(path.glob("*.root")):
            forms = {name: Form.from_json(form) for name, form in about["forms"].items()}
            streams += [_Root(files, name, about["streams"][name], form) for name, form in forms.items()]
        elif any(path.glob("*/*.parquet")):
            folders = [entry for entry in sorted(path.iterdir()) if entry.is_dir() and entry.name != "missing"]
            streams += [_parquet_stream(sorted(folder.glob("*.parquet"))) for folder in folders]
        else:
            streams += [_Csv(file, names) for file in sorted(path.glob("*.csv")) if file.stem != "missing"]
        return streams, names
    msg = f"{path} is not what `thalweg export` writes: a NeXus or HDF5 file, or a folder of Parquet, Zarr, ROOT or CSV"
    raise ReplayError(msg)


def _hdf5_streams(path: Path) -> tuple[list[_Stream], dict[str, str]]:
    h5py = library("h5py", "nexus and hdf5")
    file = h5py.File(path, "r")
    try:
        info = json.loads(file["entry/thalweg/run_json"].asstr()[()])
        found: list[_Stream] = []
        for group in file["entry/instrument"].values():
            if isinstance(group, h5py.Group) and "data" in group:
                data, uneven = group["data"], "offsets" in group
                row = data.shape[1:] if uneven else data.shape[2:]
                form = Form(group.attrs["thalweg_payload_type"], data.dtype, row, None if uneven else data.shape[1])
                found.append(_Arrays(group, group.attrs["thalweg_source"], form, pairs=False))
    except KeyError as error:
        msg = f"{path} is an HDF5 file, and not one that `thalweg export` wrote: {error.args[0]}"
        raise ReplayError(msg) from error
    return found, {source["id"]: source["name"] for source in info["sources"]}


def _zarr_streams(path: Path) -> tuple[list[_Stream], dict[str, str]]:
    root = library("zarr", "zarr").open_group(path, mode="r")
    if "thalweg" not in root.attrs:
        msg = f"{path} is a group of Zarr, and not one that `thalweg export` wrote, or finished"
        raise ReplayError(msg)
    groups = [group for name, group in root.groups() if name != "missing"]
    found: list[_Stream] = [
        _Arrays(
            group,
            group.attrs["source"],
            Form.from_json(json.loads(group.attrs["form"])),
            pairs=group.attrs["complex_pairs"],
        )
        for group in groups
    ]
    return found, {source["id"]: source["name"] for source in root.attrs["thalweg"]["run"]["sources"]}


def _parquet_stream(files: Sequence[Path]) -> _Stream:
    metadata = library("pyarrow.parquet", "parquet").ParquetFile(files[0]).schema_arrow.metadata
    source = json.loads(metadata[b"thalweg.source"])["id"]
    return _Parquet(files, source, Form.from_json(json.loads(metadata[b"thalweg.form"])))


def _of_source(path: Path, source: str) -> tuple[str, list[_Stream]]:
    """Returns a source's name, and its streams."""
    streams, names = _streams(path)
    id = source if source in names else next((id for id, name in names.items() if name == source), None)
    found = [stream for stream in streams if stream.source == id]
    if id is None or not found:
        there = sorted({f"{stream.source} ({names.get(stream.source)})" for stream in streams if stream.source})
        msg = f"{path} has no fragments of a source {source!r}; it has those of {', '.join(there) or 'none'}"
        raise ReplayError(msg)
    return names[id], found


def fragments(path: str | Path, source: str) -> Iterator[Played]:
    """Yields the fragments of a source, by its id or name, in an exported file, in the order of their events."""
    _, streams = _of_source(Path(path), source)
    return heapq.merge(*(stream.fragments() for stream in streams), key=lambda played: played.event)


def _declared(streams: Sequence[_Stream], path: Path) -> dict[str, Any]:
    """Returns what `thalweg.Source` is to know of the fragments."""
    kinds = {(stream.form.dtype, stream.form.row) for stream in streams}
    if len(kinds) > 1:
        several = " and ".join(sorted({stream.form.payload_type for stream in streams}))
        msg = f"{path}: this source has fragments of different types ({several}), which one source cannot push"
        raise ReplayError(msg)
    form, longest = streams[0].form, max(1, *(stream.longest() for stream in streams))
    if form.payload_type in ("raw", "vdif"):
        return {"max_bytes": longest, "payload_type": form.payload_type}
    return {"dtype": form.dtype, "shape": (longest, *form.row)}


def _status(bits: int) -> list[str]:
    names = [name for bit, name in STATUS.items() if bits >> bit & 1]
    clock = CLOCKS[bits >> 16 & 3]
    return ["replayed", *names, *([clock] if clock else [])]


def replay(
    path: str | Path,
    builders: str | Sequence[str],
    *,
    source: str,
    id: str,
    name: str | None = None,
    timeout: float = 10.0,
) -> dict[str, Any]:
    """Plays the fragments of a source of an exported file into a run, and returns what the source counted.

    Raises ReplayError where the file cannot be played, and RunError where the run does not take it.
    """
    known, streams = _of_source(Path(path), source)
    declared = _declared(streams, Path(path))
    description = {"replayed": True, "file": str(path), "source": source}
    pushed = thalweg.Source(builders, id=id, name=name or known, description=description, timeout=timeout, **declared)
    with pushed:
        try:
            for played in heapq.merge(*(stream.fragments() for stream in streams), key=lambda played: played.event):
                data = played.array if played.array.size else b""
                pushed.push(
                    data,
                    played.event,
                    timestamp=played.timestamp,
                    window=played.window,
                    status=_status(played.status),
                    timeout=timeout,
                )
        except thalweg.RunOver:
            pass
        return pushed.finish()


def main() -> int:
    """Replays as the words of a command say, and returns the exit code."""
    arguments = argparse.ArgumentParser(
        prog="python -m thalweg.replay", description="Plays an exported file into a run"
    )
    arguments.add_argument("file", metavar="FILE", help="what thalweg export wrote")
    arguments.add_argument("builder", nargs="+", help="a builder's address, such as tcp:127.0.0.1:7700")
    arguments.add_argument("--source", required=True, help="the source in the file, by its name or id")
    arguments.add_argument("--id", required=True, help='the source\'s id in the new run, such as "1.0"')
    arguments.add_argument("--name", help="the source's name; that in the file without it")
    arguments.add_argument("--timeout", type=float, default=10.0, help="seconds to wait for the builders")
    options = arguments.parse_args()
    try:
        report = replay(
            options.file,
            options.builder,
            source=options.source,
            id=options.id,
            name=options.name,
            timeout=options.timeout,
        )
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        print(f"thalweg.replay: {error}", file=sys.stderr)
        return 1
    print(f"{options.file}: {report['accepted']:,} fragments of {options.source}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
