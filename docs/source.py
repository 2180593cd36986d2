"""A source in plain Python, written from wire.md: greeting, offers, data, books. Usage: source.py HOST PORT."""

import json
import socket
import struct
import sys
import time

HELLO, WELCOME, REFUSE, START, OFFER, FETCH, DATA, RELEASE, PAUSE, PAUSED, STOP_AT, END, BYE = range(1, 14)
RESUME = 23
SOURCE = 1 << 16 | 0  # "1.0"
SLOTS, SLOT_BYTES, MAX_PAYLOAD = 16, 4096, 1024

TABLE = []
for entry in range(256):
    for _ in range(8):
        entry = entry >> 1 ^ (0x82F63B78 if entry & 1 else 0)
    TABLE.append(entry)


def crc32c(data: bytes) -> int:
    """The CRC of headers, payloads and messages."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def sealed(fields: bytes) -> bytes:
    """60 bytes and their CRC."""
    fields = fields.ljust(60, b"\0")
    return fields + struct.pack("<I", crc32c(fields))


def message(kind: int, layout: str = "<", *values: int) -> bytes:
    """A control message."""
    return sealed(struct.pack("<4sBBxx", b"TWMS", 2, kind) + struct.pack(layout, *values))


def record(run: int, event: int, payload: bytes) -> bytes:
    """A fragment with its header in front, padded to 64 bytes."""
    tai, sequence, length = time.time_ns() + 37 * 10**9, event & 0xFFFFFFFF, len(payload)
    what = struct.pack("<4sBBHIIQQ", b"TWLG", 1, 8, 0, 0, run, event, tai)
    piece = struct.pack("<7I", SOURCE, sequence, length, 0, length, 0, crc32c(payload))
    return (sealed(what + piece) + payload).ljust((64 + length + 63) // 64 * 64, b"\0")


link = socket.create_connection((sys.argv[1], int(sys.argv[2])))
description = json.dumps({"kind": "example"}).encode()
who = time.time_ns(), SOURCE, 0, 1, SLOTS, SLOT_BYTES, MAX_PAYLOAD, 0, len(description)
link.sendall(message(HELLO, "<Q8I", *who) + description)

run, event, end, running, ended = 0, 0, None, False, False
held, tickets = {}, 0  # what was offered and not released, by ticket
while True:
    while running and len(held) < SLOTS and (end is None or event < end):
        held[tickets] = record(run, event, b"event %d" % event)
        link.sendall(message(OFFER, "<QQQIII", tickets, event, 0, 1, len(held[tickets]), 0))
        tickets, event = tickets + 1, event + 1
    if running and event == end and not ended:
        ended = True
        link.sendall(message(END, "<6QI", event, 0, 0, tickets, time.process_time_ns(), 0, event & 0xFFFFFFFF))
    cell = link.recv(64, socket.MSG_WAITALL)
    if len(cell) < 64 or cell[:5] != b"TWMS\2" or cell != sealed(cell[:60]):
        sys.exit("the builder is gone, or said something else than a message")
    kind, body = cell[5], cell[8:60]
    if kind == START:
        event, _, run = struct.unpack_from("<QQI", body)
        running = True
    elif kind == FETCH:
        ticket, offset, length = struct.unpack_from("<QII", body)
        link.sendall(message(DATA, "<QII", ticket, offset, length) + held[ticket][offset : offset + length])
    elif kind == RELEASE:
        (below,) = struct.unpack_from("<Q", body)
        held = {ticket: slot for ticket, slot in held.items() if ticket >= below}
    elif kind == PAUSE:
        running = False
        link.sendall(message(PAUSED, "<Q", event))
    elif kind == RESUME:
        running = True
    elif kind == STOP_AT:
        (end,) = struct.unpack_from("<Q", body)
        running = True
    elif kind == REFUSE:
        reason, length = struct.unpack_from("<II", body)
        sys.exit(f"refused ({reason}): {link.recv(length, socket.MSG_WAITALL).decode()}")
    elif kind == BYE:
        break
print(f"{event} events, {tickets} tickets")
