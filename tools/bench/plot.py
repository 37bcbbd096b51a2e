"""Ratios to Mosquitto as SVG: a bar for Taipan, a dot for each other broker, a line for each goal."""

import math
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, ROW = 860, 260, 60, 62, 20
LEAST, MOST = 0.05, 50.0
COLOURS = {"nats": "#c2410c", "aedes": "#15803d", "amqtt": "#7e22ce"}
AHEAD, BEHIND, INK, FAINT = "#1d4ed8", "#93a8d8", "#1f2937", "#d1d5db"

STYLE = f'role="img" font-family="sans-serif" font-size="12" fill="{INK}"'


class Bar(NamedTuple):
    """One figure: Taipan's ratio to Mosquitto, those of the others, and the goal (None: it has none)."""

    label: str
    ratio: float
    others: dict[str, float]
    goal: float | None


def ticks(lowest: float, highest: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten that enclose both numbers."""
    found = [
        digit * 10.0**power
        for power in range(math.floor(math.log10(lowest)) - 1, math.ceil(math.log10(highest)) + 2)
        for digit in (1, 2, 5)
    ]
    below = [each for each in found if each <= lowest]
    above = [each for each in found if each >= highest]
    return [each for each in found if below[-1] <= each <= above[0]]


def draw(title: str, bars: list[Bar]) -> str:
    """Return the SVG.

    The axis is logarithmic, so ratios of 2 and 1/2 are equally far from 1. It ends at ``LEAST`` and ``MOST``; values
    outside are drawn at the edge.
    """
    values = [value for bar in bars for value in (1.0, bar.ratio, *bar.others.values(), bar.goal or 1.0) if value > 0]
    marks = ticks(max(min(values, default=1.0) * 0.95, LEAST), min(max(values, default=1.0) * 1.05, MOST))
    low, high = math.log10(marks[0]), math.log10(marks[-1])
    bottom = TOP + ROW * len(bars)

    def across(value: float) -> float:
        value = min(max(value, marks[0]), marks[-1])
        return LEFT + (math.log10(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 28}" {STYLE}>',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{bottom + 28}" fill="#ffffff"/>',
        f'<text x="12" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    named = [name for name in COLOURS if any(name in bar.others for bar in bars)]
    place = 12
    for name, colour in [("taipan", AHEAD), *((name, COLOURS[name]) for name in named), ("goal", INK)]:
        if name == "goal":
            out.append(f'<path d="M{place + 5} 32v14" stroke="{colour}" stroke-width="2"/>')
        elif name == "taipan":
            out.append(f'<rect x="{place}" y="34" width="10" height="10" fill="{colour}"/>')
        else:
            out.append(f'<circle cx="{place + 5}" cy="39" r="4.5" fill="{colour}"/>')
        out.append(f'<text x="{place + 14}" y="43">{name}</text>')
        place += 90
    for mark in marks:
        x = across(mark)
        strong = INK if mark == 1 else FAINT
        out.append(f'<path d="M{x:.1f} {TOP - 4}V{bottom}" stroke="{strong}" stroke-width="1"/>')
        out.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" font-size="11">{mark:g} ×</text>')
    for index, bar in enumerate(bars):
        y = TOP + ROW * index
        start, end = sorted((across(1.0), across(bar.ratio)))
        colour = AHEAD if bar.ratio >= 1 else BEHIND
        out.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(bar.label)}</text>')
        out.append(
            f'<rect x="{start:.1f}" y="{y + 3}" width="{max(end - start, 1):.1f}" height="{ROW - 7}" fill="{colour}">'
            f"<title>{escape(bar.label)}: {bar.ratio:.2f} ×</title></rect>"
        )
        for name, value in bar.others.items():
            out.append(
                f'<circle cx="{across(value):.1f}" cy="{y + 9.5}" r="4.5" fill="{COLOURS[name]}" stroke="#ffffff">'
                f"<title>{name}: {value:.2f} ×</title></circle>"
            )
        if bar.goal is not None:
            out.append(f'<path d="M{across(bar.goal):.1f} {y + 1}v{ROW - 3}" stroke="{INK}" stroke-width="2"/>')
        out.append(f'<text x="{WIDTH - 6}" y="{y + 13}" text-anchor="end" font-size="11">{bar.ratio:.2f} ×</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
