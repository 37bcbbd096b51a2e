"""The table of ``taipan-ctl top``, for the node's side and for a terminal."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from taipan.broker.observability.log_text import one_line

_COLUMNS: Final = ("in/s", "out/s", "in B/s", "out B/s", "queue", "inflight", "dropped")
_KEYS: Final = ("in", "out", "in_oct", "out_oct", "queue", "inflight", "dropped")
_WIDTHS: Final = (9, 9, 11, 11, 8, 9, 9)
_NAME: Final = 40


def top_lines(look: Mapping[str, Any]) -> list[str]:
    """One look, as ``top`` gives it as JSON. Nothing in it can act upon a terminal."""
    at = time.strftime("%H:%M:%S", time.localtime(look["at"] / 1000))
    figures = look["figures"] or {}
    head = (
        f"{look['node']}  {at}  clients {look['clients']}  "
        f"in {figures.get('messages_received', 0):g}/s  out {figures.get('messages_sent', 0):g}/s  "
        f"dropped {figures.get('deliveries_dropped', 0):g}/s  lag {figures.get('loop_lag', 0):g} ms"
    )
    lines = [one_line(head), "", _row("CLIENT", _COLUMNS)]
    for each in look["rows"]:
        name = each["clientid"] if each["connected"] else f"{each['clientid']} (offline)"
        lines.append(
            _row(name, [f"{each[key]:g}" if isinstance(each[key], int) else _rate(each[key]) for key in _KEYS])
        )
    lines += ["", _row("TOPIC", ("msg/s", "messages"))]
    for each in look["topics"]:
        name = each["topic"] + ("/#" if each["deeper"] else "")
        lines.append(_row(name, (_rate(each["rate"]), str(each["messages"]))))
    return lines


def _rate(value: float) -> str:
    return f"{value:.1f}"


def _row(name: str, cells: Sequence[str]) -> str:
    shown = one_line(name)
    shown = shown if len(shown) <= _NAME else shown[: _NAME - 1] + "…"
    return f"{shown:<{_NAME}}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=False))


def fitted(lines: Iterable[str], columns: int, rows: int) -> list[str]:
    """As much of it as a terminal shows."""
    return [line[:columns] for line in list(lines)[: max(1, rows)]]
