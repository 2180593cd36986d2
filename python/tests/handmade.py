"""Writer of small runs, made after `docs/run-format.md` and `docs/wire.md` alone, without code of Thalweg.

That the reader accepts these runs shows that the two pages are complete.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RAW, SAMPLES_I16, IMAGE_U8, IMAGE_U16, VDIF = range(5)
MISSING, TIMED_OUT, SIMULATED, EMPTY, NO_PAYLOAD_CRC = 1 << 2, 1 << 3, 1 << 6, 1 << 8, 1 << 9


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """Returns Castagnoli's CRC, reflected (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@dataclass
class Record:
    """Fragment to be written."""

    event: int
    source: str
    payload: bytes = b""
    payload_type: int = RAW
    status: int = SIMULATED
    timestamp: int = 1_800_000_000_000_000_000
    window: int = 0
    sequence: int = 0

    def encode(self, run: int) -> bytes:
        """Returns header, payload and padding."""
        size, crc = len(self.payload), 0 if self.status & NO_PAYLOAD_CRC else crc32c(self.payload)
        head = struct.pack(
            "<4sBBHIIQQIIIIIII",
            *(b"TWLG", 1, 8, self.payload_type, self.status, run, self.event, self.timestamp),
            *(source_number(self.source), self.sequence, size, 0, size, self.window, crc),
        )
        return padded(head + struct.pack("<I", crc32c(head)) + self.payload, 64)


def source_number(source: str) -> int:
    """Returns the number of a source id such as `3.17`."""
    subsystem, element = map(int, source.split("."))
    return subsystem << 16 | element


def padded(data: bytes, to: int) -> bytes:
    """Returns the data, with zeros up to a multiple of `to` bytes."""
    return data + bytes(-len(data) % to)


def block(run: int, number: int, records: list[Record], closings: list[tuple[int, int, int, int]]) -> bytes:
    """Returns a data block. A closing is (first event, stride, count, status)."""
    body, entries = b"", b""
    for record in records:
        entries += struct.pack("<QII", record.event, source_number(record.source), 64 + len(body))
        body += record.encode(run)
    index_at = 64 + len(body)
    table = entries + b"".join(struct.pack("<QQIIQ", *closing, 0) for closing in closings)
    body = padded(bytes(64) + body + table, 4096)[64:]
    head = struct.pack(
        "<4sHHIIQIIIIIIQI",
        *(b"TWBK", 1, 1, run, 0, number, 64 + len(body), index_at, index_at, len(records), len(closings), 0),
        *(1_800_000_000_000_000_000, crc32c(body)),
    )
    return head + struct.pack("<I", crc32c(head)) + body


def write_run(
    directory: Path,
    blocks: list[bytes],
    sources: dict[str, dict[str, Any]],
    state: str = "OPEN",
    run: int = 7,
) -> Path:
    """Writes a run without a footer, as if its writer had died. `sources` maps ids to descriptions."""
    directory.mkdir()
    (directory / "00000.seg").write_bytes(b"".join(blocks))
    described = [{"id": id, "name": f"n{id}", "description": d} for id, d in sources.items()]
    info = {
        "format": "thalweg-run",
        "version": 1,
        "run": run,
        "builder": 0,
        "builders": 1,
        "state": state,
        "reasons": [],
        "began": 1_800_000_000_000_000_000,
        "ended": None,
        "tai_utc_offset": 37,
        "writer": {"program": "handmade", "version": "0", "host": "here", "kernel": "none", "pid": 0},
        "recorder": {"direct": False, "block_size": 4096},
        "sources": described,
        "configuration": {},
        "events": {"built": 0, "incomplete": 0},
        "ledger": [],
        "totals": {"bytes": 0, "seconds": 0.0, "blocks": len(blocks)},
    }
    (directory / "run.json").write_text(json.dumps(info))
    return directory
