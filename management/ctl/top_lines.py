"""The table of ``taipan-ctl top``, for the node's side and for a terminal."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from taipan.broker.observability.log_text import one_line

_COLUMNS: Final = ("in/s", "out/s", "in B/s", "out B/s", "queue", "inflight", "dropped")
_KEYS: Final = ("in", "out", "in_oct", "out_oct", "queue", "inflight", "dropped")
_WIDTHS: Final = (9, 9, 11, 11, 8, 9, 9)
_NAME: Final = 40
_HEADS: Final = 5
"""Lines of a table that are not clients or topics."""


def top_lines(look: Mapping[str, Any], height: int = 0) -> list[str]:
    """Return the lines for one update of ``top`` in JSON. They contain no characters that control a terminal.

    ``height``: number of available lines, of which a quarter is for topics; 0: no limit."""
    topics = look["topics"][: max(1, height // 4)] if height else look["topics"]
    clients = look["rows"][: max(1, height - len(topics) - _HEADS)] if height else look["rows"]
    at = time.strftime("%H:%M:%S", time.localtime(look["at"] / 1000))
    figures = look["figures"] or {}
    head = (
        f"{look['node']}  {at}  clients {look['clients']}  "
        f"in {figures.get('messages_received', 0):g}/s  out {figures.get('messages_sent', 0):g}/s  "
        f"dropped {figures.get('deliveries_dropped', 0):g}/s  lag {figures.get('loop_lag', 0):g} ms"
    )
    lines = [one_line(head), "", _row("CLIENT", _COLUMNS)]
    for each in clients:
        name = each["clientid"] if each["connected"] else f"{each['clientid']} (offline)"
        lines.append(
            _row(name, [f"{each[key]:g}" if isinstance(each[key], int) else _rate(each[key]) for key in _KEYS])
        )
    lines += ["", _row("TOPIC", ("msg/s", "messages"))]
    for each in topics:
        name = each["topic"] + ("/#" if each["deeper"] else "")
        lines.append(_row(name, (_rate(each["rate"]), str(each["messages"]))))
    return lines


def _rate(value: float) -> str:
    return f"{value:.1f}"


def _row(name: str, cells: Sequence[str]) -> str:
    shown = one_line(name)
    shown = shown if len(shown) <= _NAME else shown[: _NAME - 1] + "…"
    return f"{shown:<{_NAME}}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=False))


def fitted(look: Mapping[str, Any], columns: int, rows: int) -> list[str]:
    """Return the part of the lines that fits into a terminal."""
    return [line[:columns] for line in top_lines(look, max(1, rows))[: max(1, rows)]]
