"""Writes figures as small PNGs, because Prefect's database stores every version of a picture."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from segue.errors import MissingExtraError

MOST_BYTES = 40_000
_SIZES = ((110, 64), (100, 32), (90, 24), (75, 16), (60, 12), (45, 8))
"""Pairs of resolution in dots per inch and number of colours, from the best quality to the smallest file."""

PAGE_INCHES = 7.7
"""Width of a figure in inches.

The page shows a figure with a width of 850 pixels, so a text of 9 points is 14 pixels high.
"""

_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def page_figure(height: float, *, needed_for: str) -> Iterator[Any]:
    """Provide a figure with the page's width, with this height in inches, in the style of segue's plots.

    Only one block runs at a time, because matplotlib's settings are global.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(extra="data", needed_for=needed_for) from None
    style = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with _ONE_AT_A_TIME, mpl.rc_context(style):  # type: ignore[arg-type]
        yield Figure(figsize=(PAGE_INCHES, height), layout="constrained")


def png(figure: Any, *, dpi: int = 110) -> bytes:
    """Return a matplotlib figure as a PNG."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    return drawn.getvalue()


def small_png(figure: Any) -> bytes:
    """Return a matplotlib figure as a PNG in the best quality with at most 40 kB.

    If no quality fits, return the smallest PNG.
    """
    from PIL import Image

    small = b""
    for dpi, colours in _SIZES:
        with Image.open(io.BytesIO(png(figure, dpi=dpi))) as image:
            flat = image.convert("RGB").quantize(colours, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        packed = io.BytesIO()
        flat.save(packed, format="png", optimize=True)
        small = packed.getvalue()
        if len(small) <= MOST_BYTES:
            break
    return small
