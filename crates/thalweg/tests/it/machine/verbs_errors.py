"""Errors that one verbs program provokes at another: `python3 verbs_errors.py serve|ask ADDRESS CASE...`, both in one
directory.

The serving end registers memory of three kinds and writes down where; the asking end posts a request that the other must
refuse. The kernel's log has a line `verbs_errors CASE` before each.
"""

import json
import sys
import time
from pathlib import Path

import pyverbs.cm_enums as cm
import pyverbs.enums as verbs
from pyverbs.cmid import CMID, AddrInfo
from pyverbs.qp import QPCap, QPInitAttr

PORT = "7999"
REGION_BYTES = 4096
OTHER_STAG = 0x5A5A5A00
PATIENCE_SECONDS = 20


def wait_for(path: Path) -> None:
    """Returns when the file is there."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        if time.monotonic() > end:
            sys.exit(f"{path} does not come")
        time.sleep(0.02)


def queue_options() -> QPInitAttr:
    cap = QPCap(max_send_wr=8, max_recv_wr=8, max_send_sge=1, max_recv_sge=1)
    return QPInitAttr(qp_type=verbs.IBV_QPT_RC, cap=cap, sq_sig_all=1)


def serve(address: str, cases: list[str]) -> None:
    info = AddrInfo(src=address, src_service=PORT, port_space=cm.RDMA_PS_TCP, flags=cm.RAI_PASSIVE)
    listener = CMID(creator=info, qp_init_attr=queue_options())
    listener.listen()
    Path("listens").touch()
    for case in cases:
        serve_case(listener, case)


def serve_case(listener: CMID, case: str) -> None:
    peer = listener.get_request()
    regions = {
        "writable": peer.reg_write(REGION_BYTES),
        "readable": peer.reg_read(REGION_BYTES),
        "closed": peer.reg_msgs(REGION_BYTES),
    }
    receive = peer.reg_msgs(64)
    if case == "too-long":
        peer.post_recv(receive, 64)
    peer.accept()
    written = Path(f"{case}.part")
    written.write_text(json.dumps({name: [region.buf, region.rkey] for name, region in regions.items()}))
    written.rename(f"{case}.places")
    wait_for(Path(f"{case}.done"))
    peer.close()


def ask(address: str, cases: list[str]) -> None:
    wait_for(Path("listens"))
    for case in cases:
        ask_case(address, case)


def ask_case(address: str, case: str) -> None:
    Path("/dev/kmsg").write_text(f"verbs_errors {case}")
    info = AddrInfo(src=None, dst=address, dst_service=PORT, port_space=cm.RDMA_PS_TCP, flags=0)
    asker = CMID(creator=info, qp_init_attr=queue_options())
    own = asker.reg_msgs(REGION_BYTES)
    sink = asker.reg_write(REGION_BYTES)
    asker.connect()
    wait_for(Path(f"{case}.places"))
    places = json.loads(Path(f"{case}.places").read_text())
    (writable, write_key), (readable, read_key), (closed, closed_key) = places.values()
    last = REGION_BYTES - 6
    match case:
        case "write-stag":
            asker.post_write(own, 64, writable, write_key ^ OTHER_STAG)
        case "write-bounds":
            asker.post_write(own, 64, writable + last, write_key)
        case "write-right":
            asker.post_write(own, 64, readable, read_key)
        case "read-stag":
            asker.post_read(sink, 64, readable, read_key ^ OTHER_STAG)
        case "read-bounds":
            asker.post_read(sink, 64, readable + last, read_key)
        case "read-right":
            asker.post_read(sink, 64, closed, closed_key)
        case "no-receive" | "too-long":
            asker.post_send(own, 128)
        case _:
            sys.exit(f"there is no case {case}")
    print(case, "completion", asker.get_send_comp().status)
    # The peer's message about the error comes after the completion of a write.
    time.sleep(0.5)
    Path(f"{case}.done").touch()
    asker.close()


if __name__ == "__main__":
    {"serve": serve, "ask": ask}[sys.argv[1]](sys.argv[2], sys.argv[3:])
