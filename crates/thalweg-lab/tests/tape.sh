#!/bin/bash
# tape.sh RATE BUFFER NAME...: makes the tapes of these congestion controls (bpf/tape.h), NAME.tape each, in the current
# directory. Runs in the laboratory's kernel, where the clock stands still while anything computes.
#
# One connection, through a switch, over RATE (10mbit) and 40 ms with a buffer of BUFFER packets (60): 1 s of sending; a path that is
# gone for longer than a retransmission timeout; sending again; acknowledgements that come too late, so that a timeout was
# a mistake; idling; sending with one packet in 300 lost.
set -e
rate=$1 buffer=$2
shift 2

ip link add switch type bridge
for end in source builder; do
    ip netns add "$end"
    ip link add "to_$end" type veth peer name e0 netns "$end"
    ip link set dev "to_$end" master switch up
    ip -n "$end" link set dev e0 up
done
ip link set dev switch up
ip -n source address add 10.0.0.1/24 dev e0
ip -n builder address add 10.0.0.2/24 dev e0
tc qdisc add dev to_builder root handle 1: tbf rate "$rate" burst 3028 limit 100000000
tc qdisc add dev to_builder parent 1: handle 2: netem limit "$buffer"
tc qdisc add dev to_source root netem delay 40ms limit 10000

late() { tc qdisc change dev to_source root netem delay "$1" limit 10000; }
lost() { tc qdisc change dev to_builder parent 1: handle 2: netem limit "$buffer" loss "$1"; }

for control in "$@"; do
    echo 1048576 >/proc/tcp_tape
    ip netns exec builder python3 -c '
import socket
with socket.create_server(("10.0.0.2", 5000)) as server:
    peer, _ = server.accept()
    while peer.recv(1 << 16):
        pass
' &
    sleep 0.2
    ip netns exec source python3 -c '
import socket, sys, time
sender = socket.socket()
sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"tape_" + sys.argv[1].encode())
sender.connect(("10.0.0.2", 5000))
sender.settimeout(0.05)
start = time.monotonic()
def send_until(seconds):
    while time.monotonic() - start < seconds:
        try:
            sender.send(bytes(1 << 14))
        except TimeoutError:
            pass
send_until(2.7)
time.sleep(0.5)
send_until(4.3)
' "$control" &
    sleep 1
    lost 100%
    sleep 0.5
    lost 0%
    sleep 0.7
    late 800ms
    sleep 0.1
    late 40ms
    sleep 1
    lost 0.3%
    sleep 1
    lost 0%
    wait
    sleep 0.2 # the last acknowledgements
    cat /proc/tcp_tape >"$control.tape"
done
