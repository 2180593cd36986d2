"""Sends SPEAD heaps by spead2: send_heaps.py PORT FLAVOUR HEAPS BYTES PACKET. Heap n (from 0) is filled with what
`content` of tests/it/listening.rs computes."""

import sys

import numpy
import spead2
import spead2.send

port, flavour, heaps, size, packet = map(int, sys.argv[1:])
config = spead2.send.StreamConfig(max_packet_size=packet, rate=30e6, max_heaps=2)
stream = spead2.send.UdpStream(spead2.ThreadPool(), [("127.0.0.1", port)], config)
for number in range(heaps):
    # Without descriptors the payload is the item alone.
    heap = spead2.send.Heap(spead2.Flavour(4, 64, flavour))
    value = (numpy.arange(size, dtype=numpy.uint64) * 31 + number * 17).astype(numpy.uint8)
    heap.add_item(spead2.Item(0x1000, "data", "", shape=(size,), dtype=numpy.uint8, value=value))
    heap.add_item(spead2.Item(0x1600, "time", "", shape=(), format=[("u", flavour)], value=number))
    stream.send_heap(heap)
end = spead2.send.Heap(spead2.Flavour(4, 64, flavour))
end.add_end()
stream.send_heap(end)
