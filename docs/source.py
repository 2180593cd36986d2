"""A source for Thalweg in plain Python: hello, offers, data, books. python3 source.py HOST PORT"""
import json, socket, struct, sys, time

TABLE = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    TABLE.append(n)

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF

def sealed(first60):
    first60 = first60.ljust(60, b"\0")
    return first60 + struct.pack("<I", crc32c(first60))

def message(kind, fields=b""):
    return sealed(struct.pack("<4sBBxx", b"TWMS", 1, kind) + fields)

def record(run, event, source, sequence, payload):
    header = sealed(struct.pack("<4sBBHIIQQIIIIIII", b"TWLG", 1, 8, 0, 0, run, event, time.time_ns() + 37 * 10**9,
                                source, sequence, len(payload), 0, len(payload), 0, crc32c(payload)))
    return (header + payload).ljust((64 + len(payload) + 63) // 64 * 64, b"\0")

HELLO, WELCOME, REFUSE, START, OFFER, FETCH, DATA, RELEASE, PAUSE, PAUSED, STOP_AT, END, BYE = range(1, 14)
source, slots = 1 << 16 | 0, 16                               # "1.0"

link = socket.create_connection((sys.argv[1], int(sys.argv[2])))
description = json.dumps({"name": "python", "kind": "example"}).encode()
link.sendall(message(HELLO, struct.pack("<QIIIIIIII", time.time_ns(), source, 0, 1, slots, 4096, 1024, 0,
                                        len(description))) + description)
held, tickets, event, end, running, ended = {}, 0, 0, None, False, False
while True:
    while running and len(held) < slots and (end is None or event < end):
        held[tickets] = record(run, event, source, event & 0xFFFFFFFF, b"event %d" % event)
        link.sendall(message(OFFER, struct.pack("<QQQIII", tickets, event, 0, 1, len(held[tickets]), 0)))
        tickets, event = tickets + 1, event + 1
    if running and event == end and not ended:
        ended = True
        link.sendall(message(END, struct.pack("<QQQQQQI", event, 0, 0, tickets, time.process_time_ns(), 0, event)))
    cell = link.recv(64, socket.MSG_WAITALL)
    assert len(cell) == 64 and cell == sealed(cell[:60]) and cell[:5] == b"TWMS\1", "not a message"
    kind, body = cell[5], cell[8:60]
    if kind == START:
        event, _, run = struct.unpack_from("<QQI", body)
        running = True
    elif kind == FETCH:
        ticket, offset, length = struct.unpack_from("<QII", body)
        link.sendall(message(DATA, body[:16]) + held[ticket][offset : offset + length])
    elif kind == RELEASE:
        held = {ticket: slot for ticket, slot in held.items() if ticket >= struct.unpack_from("<Q", body)[0]}
    elif kind == PAUSE:
        running = False
        link.sendall(message(PAUSED, struct.pack("<Q", event)))
    elif kind == STOP_AT:
        (end,), running = struct.unpack_from("<Q", body), True
    elif kind == REFUSE:
        sys.exit(link.recv(struct.unpack_from("<II", body)[1], socket.MSG_WAITALL).decode())
    elif kind == BYE:
        break
print(f"{event} events, {tickets} tickets")
