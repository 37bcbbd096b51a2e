"""Results of a measurement: medians, ratios, and whether a goal is met."""

import statistics
from typing import NamedTuple

from tools.bench.results import Runs, figure
from tools.bench.scenarios import SCENARIOS, Figure


class Spread(NamedTuple):
    """The rounds of one broker for one figure."""

    median: float
    lowest: float
    highest: float


def spread(runs: Runs, scenario: str, broker: str, path: str) -> Spread | None:
    """Return the spread; None if the broker was not measured or never succeeded. Failed rounds count as 0."""
    values = [figure(row, path) for row in runs.get((scenario, broker), [])]
    if not any(values):
        return None
    return Spread(statistics.median(values), min(values), max(values))


def ratio(runs: Runs, scenario: str, about: Figure, other: str = "mosquitto", broker: str = "taipan") -> float | None:
    """Return the ratio; above 1: ``broker`` is better. None if either has no figure."""
    ours, theirs = spread(runs, scenario, broker, about.path), spread(runs, scenario, other, about.path)
    if ours is None or theirs is None:
        return None
    better, worse = (ours.median, theirs.median) if about.more_is_better else (theirs.median, ours.median)
    return better / worse if worse else None


def reached(runs: Runs, scenario: str, about: Figure, bound: float | str, relative: bool) -> float | None:
    """Return how much of a goal is reached, as a share; 1 or more means that it is met. ``bound`` is a number or the
    name of another broker."""
    if isinstance(bound, str):
        return ratio(runs, scenario, about, bound)
    if relative:
        found = ratio(runs, scenario, about)
        if found is None:
            return None
        return found / bound if about.more_is_better else found * bound
    ours = spread(runs, scenario, "taipan", about.path)
    if ours is None or not ours.median:
        return None
    return ours.median / bound if about.more_is_better else bound / ours.median


def _told(bound: float | str, relative: bool, about: Figure) -> str:
    if isinstance(bound, str):
        return f"past {bound}"
    sign = "≥" if about.more_is_better else "≤"
    return f"{sign} {bound:g} ×" if relative else f"{sign} {bound:,.0f}"


def _judged(part: float | None) -> str:
    if part is None:
        return "not measured"
    return "met" if part >= 1 else f"**missed**, {100 * part:.0f} % of it"


def goal(runs: Runs, scenario: str, about: Figure) -> str:
    """Return the goal of a figure and whether it is met; a dash if there is none."""
    wanted = about.goal
    if wanted.times is not None:
        part = reached(runs, scenario, about, wanted.times, True)
        return f"{_told(wanted.times, True, about)}: {_judged(part)}"
    if wanted.value is not None:
        part = reached(runs, scenario, about, wanted.value, False)
        return f"{_told(wanted.value, False, about)}: {_judged(part)}"
    return "-"


def beyond(runs: Runs, scenario: str, about: Figure) -> str:
    """Return the further goal, and how much of it is reached."""
    wanted = about.goal.beyond
    if wanted is None:
        return "-"
    relative = about.goal.value is None or (not about.more_is_better and isinstance(wanted, float) and wanted <= 1)
    part = reached(runs, scenario, about, wanted, relative)
    told = _told(wanted, relative, about)
    if part is None:
        return f"{told}: not measured"
    return f"{told}: " + ("there" if part >= 1 else f"{100 * part:.0f} %")


def falls(runs: Runs, small: str = "S9a", large: str = "S9c") -> float | None:
    """Return the factor by which matching becomes slower from the fewest filters to the most."""
    path = SCENARIOS[small].figures[0].path
    few, many = spread(runs, small, "taipan", path), spread(runs, large, "taipan", path)
    return few.median / many.median if few and many and many.median else None
