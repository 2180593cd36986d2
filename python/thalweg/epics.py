"""A source that takes what EPICS publishes: NTNDArray, as areaDetector's pvAccess plugin does.

    python -m thalweg.epics 13SIM1:Pva1:Image tcp:127.0.0.1:7700 --id 1.0

Each array is one fragment. Events are numbered by `uniqueId`, the counter of the camera's driver: a number
that is left out is an array that was lost on the way, `lost_in_device` in the run's ledger. Arrays are dated by their
`dataTimeStamp`, and as they come where that is not set. When the server goes away and comes back, numbers go on where
they were.

Of arrays without `uniqueId` all that come are in the run, in their order. What of them is lost on the way is not known:
a warning says so.

Arrays of another shape or type than the first one end the source, as do compressed ones: areaDetector compresses where
a codec plugin is told to. Needs p4p: pip install thalweg[epics].
"""

from __future__ import annotations

import queue
import warnings
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from thalweg import _published
from thalweg._published import LOOK, Image

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = ["Image", "images", "record"]

# TAI is so much ahead of UTC since 2017 (IERS Bulletin C).
TAI_UTC = 37
# Arrays that wait here, and in the server. Of more, some are lost, and counted.
WAITING = 64


class _Gone(NamedTuple):
    """The server went away."""


def _image(value: Any) -> Image:
    """What a normative NTNDArray has (EPICS 7 Normative Types, NTNDArray)."""
    if codec := value.codec.name:
        msg = f"its arrays are compressed ({codec}): switch the codec off"
        raise ValueError(msg)
    # x comes first there, and last in an array.
    shape = [dimension.size for dimension in reversed(value.dimension)]
    stamp = value.dataTimeStamp
    time = (stamp.secondsPastEpoch + TAI_UTC) * 10**9 + stamp.nanoseconds if stamp.secondsPastEpoch else None
    return Image(value.uniqueId, time, np.asarray(value.value).reshape(shape))


def images(pv: str, *, timeout: float = 10.0, over: Callable[[], bool] = lambda: False) -> Generator[Image, None, None]:
    """All arrays of a PV, from the last one that was published on.

    The first one comes within `timeout` seconds, or TimeoutError is raised.

    Numbers never go back: where a server begins again, they go on. While nothing comes, `over` is asked now and then
    whether to end.
    """
    try:
        from p4p.client.thread import Context, Disconnected
    except ImportError as error:
        msg = "thalweg.epics needs p4p: pip install thalweg[epics]"
        raise ImportError(msg) from error

    arrived: queue.Queue[Any] = queue.Queue(WAITING)

    def came(value: Any) -> None:
        item = _Gone() if isinstance(value, Disconnected) else value
        try:
            arrived.put_nowait(item)
        except queue.Full:
            # Its number will be missing.
            return

    with Context("pva", nt=False) as context:
        request = f"record[queueSize={WAITING}]field()"
        subscription = context.monitor(pv, came, request=request, notify_disconnect=True)
        count, begun, last, patience = _published.Counter(), False, None, monotonic() + timeout
        connects, numbered = True, True
        try:
            while True:
                try:
                    value = arrived.get(timeout=LOOK)
                except queue.Empty:
                    if over():
                        return
                    if not begun and monotonic() > patience:
                        msg = f"{pv}: no array within {timeout:g} s"
                        raise TimeoutError(msg) from None
                    continue
                if isinstance(value, _Gone):
                    connects = True
                    continue
                if isinstance(value, BaseException):
                    raise value
                # A server has no array before the first one.
                if value.value is None:
                    continue
                image = _image(value)
                # Whoever is connected anew is told once more what was the last.
                is_told_again, connects = connects and (image.number, image.time) == last, False
                if is_told_again:
                    continue
                if numbered and last is not None and image.number == last[0]:
                    numbered = False
                    warnings.warn(f"{pv}: its arrays have no numbers: what is lost of them is not known", stacklevel=2)
                last = image.number, image.time
                # A counter that goes back begins again.
                if image.number + count.offset <= count.last:
                    count.anew(image.number)
                begun = True
                yield image._replace(number=count(image.number))
        finally:
            subscription.close()


def record(
    pv: str, builders: str | Sequence[str], *, id: str, name: str | None = None, timeout: float = 10.0
) -> dict[str, Any]:
    """Gives a PV's arrays to the builders, to the end of their run, and returns what the source counted."""
    return _published.record(
        lambda over, timeout: images(pv, timeout=timeout, over=over),
        builders,
        id=id,
        name=name,
        description={"pv": pv},
        timeout=timeout,
        # A server begins with what it has published last.
        old=1,
    )


if __name__ == "__main__":
    _published.command(
        "thalweg.epics", "Records an NTNDArray of EPICS", ("pv", "the PV, such as 13SIM1:Pva1:Image"), record, "arrays"
    )
