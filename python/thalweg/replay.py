"""Source that plays an exported file into a run, with the same samples, event numbers and time stamps.

    python -m thalweg.replay run-000042.nxs tcp:127.0.0.1:7700 --source camera --id 1.0

The file or folder is an export in the format nexus, hdf5, parquet, zarr, root or csv. `thalweg run` plays SigMF
recordings itself (device = { kind = "sigmf", ... }). The topology has a [[source]] without a `device` for the source.
Fragments are pushed as fast as the builders take them, with the status `replayed`. Events that have no fragment of this
source in the export are left out. Needs `pip install thalweg[export]`.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import json
import re
import sys
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import thalweg
from thalweg.export._reading import Form
from thalweg.export._writer import DESCRIPTION_FILE, import_library

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["Played", "fragments", "replay"]

# Maximum number of fragments that are read together.
ROWS_PER_READ = 4096
# Maximum number of fragments read together from Parquet, where their size is not known in advance.
PARQUET_ROWS_PER_READ = 64
# Maximum size in bytes of fragments that are read together. A larger fragment is read alone.
BYTES_PER_READ = 32 << 20
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
# Names of the status bits that a source may set (docs/wire.md).
STATUS_BITS = {0: "truncated", 1: "corrupt", 6: "simulated", 12: "uncertain"}
# Names of the states of the clock, status bits 16 and 17.
CLOCK_NAMES = ("", "clock-locked", "clock-holdover", "clock-free-running")
# Entries in the description of a source that do not apply to a replay: the form of the data, which thalweg.Source
# declares, and the repetition of a recording.
FORM_ENTRIES = {
    *("kind", "payload_type", "shape", "samples", "channels", "width", "height", "record_bytes", "record_bytes_from"),
    *("loop", "records"),
}


class ReplayError(Exception):
    """Error of a file that cannot be played. The message states the reason."""


class Played(NamedTuple):
    """Fragment of an exported file."""

    event: int
    # TAI nanoseconds since 1970.
    timestamp: int
    # Time that the fragment covers, in nanoseconds.
    window: int
    # Status bits (docs/wire.md).
    status: int
    # Samples in the shape of `thalweg.Fragment.array`.
    array: NDArray[Any]


class _Stream:
    """Fragments of one source with the same form in an exported file."""

    # Id of the source.
    source: str
    form: Form

    def max_length(self) -> int:
        """Returns the maximum length of the first axis."""
        raise NotImplementedError

    def fragments(self) -> Iterator[Played]:
        """Yields all fragments in the order of their events."""
        raise NotImplementedError


class _ArrayStream(_Stream):
    """Stream in HDF5 or Zarr: an array of samples, and arrays with one value per fragment."""

    def __init__(self, group: Any, source: str, form: Form, *, pairs: bool) -> None:
        self._group, self.source, self.form, self._pairs = group, source, form, pairs

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """Yields ranges of fragments that are read together: the first index, and the index after the last."""
        count = self._group["event_id"].shape[0]
        size = self.form.dtype.itemsize * int(np.prod(self.form.shape, dtype=np.int64))
        step = max(1, min(ROWS_PER_READ, BYTES_PER_READ // max(size, 1)))
        return ((at, min(at + step, count)) for at in range(0, count, step))

    def max_length(self) -> int:
        if self.form.length is not None:
            return self.form.length
        parts = (np.diff(self._group["offsets"][at : end + 1]) for at, end in self._ranges())
        return int(max((part.max() for part in parts), default=0))

    def _variable_length(self, at: int, end: int) -> Iterator[NDArray[Any]]:
        """Yields the arrays of fragments of different lengths, read together up to BYTES_PER_READ, else one by one."""
        data, bounds = self._group["data"], self._group["offsets"][at : end + 1].tolist()
        first, rows = bounds[0], bounds[-1] - bounds[0]
        size = rows * data.dtype.itemsize * int(np.prod(data.shape[1:], dtype=np.int64))
        whole = self._to_dtype(data[first : first + rows]) if size <= BYTES_PER_READ else None
        for begin, stop in pairwise(bounds):
            yield self._to_dtype(data[begin:stop]) if whole is None else whole[begin - first : stop - first]

    def _to_dtype(self, values: Any) -> NDArray[Any]:
        """Converts samples to the dtype of the stream."""
        array = np.ascontiguousarray(values)
        if self._pairs:
            array = array.view(self.form.dtype).reshape(array.shape[:-1])
        return array.astype(self.form.dtype, copy=False)

    def fragments(self) -> Iterator[Played]:
        group = self._group
        for at, end in self._ranges():
            columns = [group[name][at:end].tolist() for name in ("event_id", "tai_ns", "window_ns", "status")]
            arrays = (
                self._variable_length(at, end)
                if self.form.length is None
                else iter(self._to_dtype(group["data"][at:end]))
            )
            yield from map(Played._make, zip(*columns, arrays, strict=True))


class _TableStream(_Stream):
    """Stream in Parquet or ROOT: files with one row per fragment."""

    def __init__(self, files: Sequence[Any], source: str, form: Form) -> None:
        self._files, self.source, self.form = files, source, form

    def _to_array(self, flat: NDArray[Any]) -> NDArray[Any]:
        """Converts the numbers of a row to the array of the fragment."""
        array = np.ascontiguousarray(flat)
        if self.form.dtype.names is not None or self.form.dtype.kind == "c":
            array = array.view(self.form.dtype)
        return array.astype(self.form.dtype, copy=False).reshape(-1, *self.form.row)


class _ParquetStream(_TableStream):
    """Stream in a folder of Parquet files."""

    def max_length(self) -> int:
        return max((int(rows[0]) for rows in self._column("shape") if len(rows)), default=0)

    def _column(self, name: str) -> Iterator[Any]:
        """Yields the values of a column."""
        parquet = import_library("pyarrow.parquet", "parquet")
        for file in self._files:
            for part in parquet.ParquetFile(file).iter_batches(ROWS_PER_READ, columns=[name]):
                yield from (value.as_py() for value in part.column(0))

    def fragments(self) -> Iterator[Played]:
        parquet = import_library("pyarrow.parquet", "parquet")
        names = ["event_id", "tai_ns", "window_ns", "status", "data"]
        for file in self._files:
            for part in parquet.ParquetFile(file).iter_batches(PARQUET_ROWS_PER_READ, columns=names):
                *columns, data = part.columns
                for *row, value in zip(*(column.to_pylist() for column in columns), data, strict=True):
                    if self.form.payload_type in ("raw", "vdif"):
                        flat = np.frombuffer(value.as_buffer() or b"", np.uint8)
                    else:
                        flat = value.values.to_numpy()
                    yield Played._make([*row, self._to_array(flat)])


class _RootStream(_TableStream):
    """Stream in a folder of ROOT files."""

    def __init__(self, files: Sequence[Any], name: str, source: str, form: Form) -> None:
        super().__init__(files, source, form)
        self._name = name

    def _parts(self, names: Sequence[str]) -> Iterator[Any]:
        """Yields the columns `names` of ROWS_PER_READ entries each."""
        uproot = import_library("uproot", "root")
        for file in self._files:
            with uproot.open(file) as opened:
                if self._name in opened:
                    entries = opened[self._name]
                    for at in range(0, entries.num_entries, ROWS_PER_READ):
                        yield entries.arrays(list(names), entry_start=at, entry_stop=at + ROWS_PER_READ)

    def max_length(self) -> int:
        return max((int(max(part["rows"], default=0)) for part in self._parts(["rows"])), default=0)

    def fragments(self) -> Iterator[Played]:
        is_complex = self.form.dtype.names is not None or self.form.dtype.kind == "c"
        data = ["real", "imaginary"] if is_complex else ["data"]
        for part in self._parts(["event_id", "tai_ns", "window_ns", "status", *data]):
            rows = [part[name].to_list() for name in ("event_id", "tai_ns", "window_ns", "status")]
            columns = [part[name] for name in data]
            for index, row in enumerate(zip(*rows, strict=True)):
                numbers = [column[index].to_numpy() for column in columns]
                yield Played._make([*row, self._to_array(np.stack(numbers, axis=-1).reshape(-1))])


# Real and complex numbers in CSV files, as thalweg.export writes them.
NUMBER_PATTERN = r"[+-]?(?:nan|inf|[0-9.]+(?:e[+-]?[0-9]+)?)"
COMPLEX_PATTERN = re.compile(rf"({NUMBER_PATTERN})([+-]{NUMBER_PATTERN.removeprefix('[+-]?')})j")


class _CsvStream(_Stream):
    """Stream in a CSV file."""

    def __init__(self, file: Path) -> None:
        """Reads the form from the first row. A file without rows has the source ""."""
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
        # All samples of a fragment are one field, which is longer than the default limit of 128 KiB.
        csv.field_size_limit(sys.maxsize)
        with self._file.open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)

    def max_length(self) -> int:
        return max((int(row["shape"].split("x")[0]) for row in self._rows()), default=0)

    def fragments(self) -> Iterator[Played]:
        for row in self._rows():
            event, time, window, status = (int(row[name]) for name in ("event_id", "tai_ns", "window_ns", "status"))
            shape = tuple(int(length) for length in row["shape"].split("x"))
            yield Played(event, time, window, status, self._parse_values(row["data"], len(shape)).reshape(shape))

    def _parse_values(self, text: str, axes: int) -> NDArray[Any]:
        """Converts the text of a fragment with `axes` axes to a one-dimensional array."""
        dtype = self.form.dtype
        if dtype == np.uint8 and axes == 1:
            return np.frombuffer(bytes.fromhex(text), np.uint8)
        if dtype.names is None and dtype.kind != "c":
            kind = float if dtype.kind == "f" else int
            return np.array([kind(word) for word in text.split()], dtype)
        found = [COMPLEX_PATTERN.fullmatch(word) for word in text.split()]
        if None in found:
            msg = f"{self._file}: {text[:40]!r} contains text that is not a complex number"
            raise ReplayError(msg)
        if dtype.names is not None:
            return np.array([(int(pair[1]), int(pair[2])) for pair in found if pair], dtype)
        return np.array([complex(float(pair[1]), float(pair[2])) for pair in found if pair], dtype)


def _open_streams(path: Path) -> tuple[list[_Stream], dict[str, dict[str, Any]]]:
    """Opens an exported file or folder. Returns its streams, and the entries of its sources in run.json by id."""
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(HDF5_SIGNATURE)) == HDF5_SIGNATURE:
                return _hdf5_streams(path)
    elif (path / "zarr.json").exists():
        return _zarr_streams(path)
    elif (path / DESCRIPTION_FILE).exists():
        description = json.loads((path / DESCRIPTION_FILE).read_text())
        sources = _sources_by_id(description["run"])
        streams: list[_Stream] = []
        if any(path.glob("*.sigmf-meta")):
            msg = f'{path}: thalweg run plays SigMF recordings: set device = {{ kind = "sigmf", file = ... }}'
            raise ReplayError(msg)
        if files := sorted(path.glob("*.root")):
            forms = {name: Form.from_json(form) for name, form in description["forms"].items()}
            streams += [_RootStream(files, name, description["streams"][name], form) for name, form in forms.items()]
        elif any(path.glob("*/*.parquet")):
            folders = [entry for entry in sorted(path.iterdir()) if entry.is_dir() and entry.name != "missing"]
            streams += [_parquet_stream(sorted(folder.glob("*.parquet"))) for folder in folders]
        else:
            streams += [_CsvStream(file) for file in sorted(path.glob("*.csv")) if file.stem != "missing"]
        return streams, sources
    msg = (
        f"{path} is not an export that can be played: a NeXus or HDF5 file, or a folder of Parquet, Zarr, ROOT or CSV, "
        "written by `thalweg export`"
    )
    raise ReplayError(msg)


def _sources_by_id(run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the entries of the sources in the content of a run.json by id."""
    return {source["id"]: source for source in run["sources"]}


def _hdf5_streams(path: Path) -> tuple[list[_Stream], dict[str, dict[str, Any]]]:
    """Returns the streams of a NeXus or HDF5 file, and the entries of its sources in run.json by id."""
    h5py = import_library("h5py", "nexus and hdf5")
    file = h5py.File(path, "r")
    try:
        info = json.loads(file["entry/thalweg/run_json"].asstr()[()])
        found: list[_Stream] = []
        for group in file["entry/instrument"].values():
            if isinstance(group, h5py.Group) and "data" in group:
                data = group["data"]
                if "offsets" in group:
                    length, row = None, data.shape[1:]
                else:
                    length, row = data.shape[1], data.shape[2:]
                form = Form(group.attrs["thalweg_payload_type"], data.dtype, row, length)
                found.append(_ArrayStream(group, group.attrs["thalweg_source"], form, pairs=False))
    except KeyError as error:
        msg = f"{path} is an HDF5 file that was not written by `thalweg export`: {error.args[0]}"
        raise ReplayError(msg) from error
    return found, _sources_by_id(info)


def _zarr_streams(path: Path) -> tuple[list[_Stream], dict[str, dict[str, Any]]]:
    """Returns the streams of a Zarr group, and the entries of its sources in run.json by id."""
    root = import_library("zarr", "zarr").open_group(path, mode="r")
    if "thalweg" not in root.attrs:
        msg = f"{path} is a Zarr group that was not written by `thalweg export`, or whose export is not complete"
        raise ReplayError(msg)
    groups = [group for name, group in root.groups() if name != "missing"]
    found: list[_Stream] = [
        _ArrayStream(
            group,
            group.attrs["source"],
            Form.from_json(json.loads(group.attrs["form"])),
            pairs=group.attrs["complex_pairs"],
        )
        for group in groups
    ]
    return found, _sources_by_id(root.attrs["thalweg"]["run"])


def _parquet_stream(files: Sequence[Path]) -> _Stream:
    """Returns the stream of the files in one folder."""
    metadata = import_library("pyarrow.parquet", "parquet").ParquetFile(files[0]).schema_arrow.metadata
    source = json.loads(metadata[b"thalweg.source"])["id"]
    return _ParquetStream(files, source, Form.from_json(json.loads(metadata[b"thalweg.form"])))


def _source_streams(path: Path, source: str) -> tuple[dict[str, Any], list[_Stream]]:
    """Returns the entry in run.json and the streams of a source, by id or name.

    Raises ReplayError if it has no fragments.
    """
    streams, sources = _open_streams(path)
    names = {id: entry["name"] for id, entry in sources.items()}
    id = source if source in names else next((id for id, name in names.items() if name == source), None)
    found = [stream for stream in streams if stream.source == id]
    if id is None or not found:
        available = sorted({f"{stream.source} ({names.get(stream.source)})" for stream in streams if stream.source})
        msg = f"{path} has no fragments of source {source!r}; it has fragments of {', '.join(available) or 'no source'}"
        raise ReplayError(msg)
    return sources[id], found


def _merge_fragments(streams: Sequence[_Stream]) -> Iterator[Played]:
    """Yields the fragments of all streams in the order of their events."""
    return heapq.merge(*(stream.fragments() for stream in streams), key=lambda played: played.event)


def fragments(path: str | Path, source: str) -> Iterator[Played]:
    """Yields the fragments of a source in an exported file, in the order of their events.

    `source` is an id or name. Raises ReplayError if the file is not an export or has no fragments of the source.
    """
    _, streams = _source_streams(Path(path), source)
    return _merge_fragments(streams)


def _source_options(streams: Sequence[_Stream], path: Path) -> dict[str, Any]:
    """Returns the arguments of `thalweg.Source` for the type and maximum size of the fragments."""
    kinds = {(stream.form.dtype, stream.form.row) for stream in streams}
    if len(kinds) > 1:
        types = " and ".join(sorted({stream.form.payload_type for stream in streams}))
        msg = f"{path}: the source has fragments of different types ({types}), but a source of a run has one type"
        raise ReplayError(msg)
    form, max_length = streams[0].form, max(1, *(stream.max_length() for stream in streams))
    if form.payload_type in ("raw", "vdif"):
        return {"max_bytes": max_length, "payload_type": form.payload_type}
    return {"dtype": form.dtype, "shape": (max_length, *form.row)}


def _replay_description(original: Any, path: str | Path, source: str) -> dict[str, Any]:
    """Returns the description of a replayed source: that of the original source, such as its `sample_rate`."""
    kept = original if isinstance(original, dict) else {}
    kept = {key: value for key, value in kept.items() if key not in FORM_ENTRIES}
    return kept | {"replayed": True, "file": str(path), "source": source}


def _status_names(bits: int) -> list[str]:
    """Returns the statuses with which a fragment is pushed: its own ones that a source may set, and `replayed`."""
    names = [name for bit, name in STATUS_BITS.items() if bits >> bit & 1]
    clock = CLOCK_NAMES[bits >> 16 & 3]
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
    """Plays a source of an exported file into a run and returns the report of thalweg.Source.finish.

    - `path` is the file or folder.
    - `builders` is the address of a builder, or the addresses of all of them.
    - `source` is the id or name of the source in the file.
    - `id` is the id of the source in the new run, `name` its name there (default: the name in the file).
    - `timeout` is the time in seconds to wait for the builders.

    Raises ReplayError if the file cannot be played, and RunError if the builders do not accept the source.
    """
    original, streams = _source_streams(Path(path), source)
    options = _source_options(streams, Path(path))
    description = _replay_description(original.get("description"), path, source)
    # The first fragment is read before the source connects to the builders: the libraries of a format take seconds to
    # load on a busy machine, and a fragment that arrives after the deadline of its event is late.
    following = _merge_fragments(streams)
    first = list(islice(following, 1))
    target = thalweg.Source(
        builders, id=id, name=name or original["name"], description=description, timeout=timeout, **options
    )
    with target:
        try:
            for played in chain(first, following):
                data = played.array if played.array.size else b""
                target.push(
                    data,
                    played.event,
                    timestamp=played.timestamp,
                    window=played.window,
                    status=_status_names(played.status),
                    timeout=timeout,
                )
        except thalweg.RunOver:
            pass
        return target.finish()


def main() -> int:
    """Plays the file that the command line names and returns the exit code."""
    arguments = argparse.ArgumentParser(
        prog="python -m thalweg.replay", description="Plays an exported file into a run"
    )
    arguments.add_argument("file", metavar="FILE", help="file or folder written by thalweg export")
    arguments.add_argument("builder", nargs="+", help="address of a builder, such as tcp:127.0.0.1:7700")
    arguments.add_argument("--source", required=True, help="name or id of the source in the file")
    arguments.add_argument("--id", required=True, help='id of the source in the new run, such as "1.0"')
    arguments.add_argument("--name", help="name of the source in the new run (default: its name in the file)")
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
