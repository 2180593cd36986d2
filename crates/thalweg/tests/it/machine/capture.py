"""Writes the TCP packets of a network interface into a capture file, until it is killed: capture.py INTERFACE FILE."""

import socket
import struct
import sys
import time

ALL_PROTOCOLS = 0x0003
IPV4_TCP = (0x0800, 6)

interface, file = sys.argv[1:]
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 20)
packets.bind((interface, 0))
with open(file, "wb") as capture:
    # Magic, version 2.4, no time zone, longest packet, Ethernet (pcap-savefile(5)).
    capture.write(struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, 1))
    capture.flush()
    while True:
        packet = packets.recv(1 << 18)
        if (int.from_bytes(packet[12:14], "big"), packet[23]) == IPV4_TCP:
            now = time.time_ns()
            capture.write(struct.pack("<IIII", now // 10**9, now % 10**9 // 1000, len(packet), len(packet)) + packet)
            capture.flush()
