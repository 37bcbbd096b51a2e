"""History: the metrics of the last hour, two days and 30 days, of one node or summed over all nodes."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from taipan.broker.loop.cooperative_slice import CooperativeSlice

from ..history.history import KEPT, STEPS, History, decoded
from ..history.point import COLUMNS, OTHER, Point, Resolution, gaps, rounded, total
from .node_calls import Gathered, NodeCalls
from .refusal import RPC_ERROR, Refusal, wrong

ALL_NODES: Final = "all"
MAX_REASONS: Final = 24
"""Maximum number of reasons in an answer's drops; the rarest others are summed as ``OTHER``."""
_LATE: Final = 2
"""By how many points a node may be behind the others before it counts as stopped."""

Moment = Annotated[int, Meta(ge=0, le=253_402_300_799_999, extra={"unit": "Unix milliseconds"})]
Span = Annotated[int, Meta(ge=1000, le=2_592_000_000, extra={"unit": "milliseconds"})]


class MonitorQuery(msgspec.Struct, kw_only=True):
    """``from`` and ``to``: Unix milliseconds; by default the last hour, with ``resolution=minute`` the last two days,
    with ``ten_minutes`` the last 30 days.
    ``span``: milliseconds before ``to``, instead of ``from``, for clients whose clock differs from the node's.
    ``resolution``: by default the finest one that still has points of the start of the time range. ``node``: the node
    to ask; ``all``: the sum of all nodes. ``columns``: the columns of the points, separated by commas; by default
    all."""

    start: Moment | None = msgspec.field(default=None, name="from")
    end: Moment | None = msgspec.field(default=None, name="to")
    span: Span | None = None
    resolution: Resolution | None = None
    node: str | None = None
    columns: str | None = None


class MonitorRecord(msgspec.Struct):
    """A series of points. ``columns``: names of the values of a point. ``gaps``: times without data, as from and to.
    ``drops``: messages dropped or clients refused per second, by reason, one number per point."""

    resolution: Resolution
    columns: tuple[str, ...]
    points: list[list[int | float]]
    gaps: list[list[int]]
    drops: dict[str, list[int | float]]


class PastFigures:
    """The data that ``History`` keeps, on this node and on others."""

    def __init__(self, history: History, calls: NodeCalls) -> None:
        self._history = history
        self._calls = calls
        calls.serve(self.points_here)

    async def monitor(self, query: MonitorQuery) -> tuple[MonitorRecord, list[str]]:
        """Return the points from ``from`` to ``to``, and the nodes that did not answer. Raises Refusal."""
        now = self._history.now
        end = now if query.end is None else query.end // 1000
        resolution = query.resolution
        start = None
        if query.start is not None:
            if query.span is not None:
                raise wrong("span", "expected without from")
            start = -(-query.start // 1000)
        elif query.span is not None:
            start = end - query.span // 1000
        if start is not None:
            if query.end is None:
                end = max(start, end)  # there are no later points, and requesting them is not an error
            if resolution is None:
                resolution = _finest(now - start)
        else:
            resolution = resolution or "second"
            start = end - _reach(resolution)
        if start > end:
            raise wrong("from", "expected a time before to")
        # No node keeps older points.
        start = max(start, now - _reach(resolution))
        end = min(end, now)
        columns = COLUMNS if query.columns is None else tuple(query.columns.split(","))
        unknown = [name for name in columns if name not in COLUMNS]
        if unknown:
            raise wrong("columns", f"expected one or more of {', '.join(COLUMNS)}")
        places = None if query.columns is None else [COLUMNS.index(name) for name in columns]
        missing: list[str] = []
        if query.node == ALL_NODES:
            gathered: Gathered[list[Point]] = await self._calls.everywhere(self.points_here, resolution, start, end)
            of_nodes = [each for _, each in gathered.found]
            points, missing = await _summed(of_nodes, STEPS[resolution]), gathered.missing
        else:
            node = query.node or self._calls.name
            points = await self._calls.on(node, self.points_here, resolution, start, end)
        rows = []
        work = CooperativeSlice()
        for point in points:
            row = point.row()
            rows.append(row if places is None else [row[place] for place in places])
            await work.checkpoint()
        between = gaps(points, start, end, STEPS[resolution])
        await work.next()
        record = MonitorRecord(resolution, columns, rows, between, await drops_by_reason(points))
        await work.next()  # its text is created in one piece
        return record, self._calls.may_lack(missing)

    async def points_here(self, resolution: Resolution, start: int, end: int) -> list[Point]:
        """Return the points of this node; ``start`` and ``end`` in Unix seconds. Raises Refusal if it keeps none."""
        if not self._history.settings.enabled:
            raise Refusal(RPC_ERROR, "this node keeps no history (setting history.enabled)")
        points = []
        work = CooperativeSlice()
        for encoded in self._history.between(resolution, start, end):
            points.append(decoded(encoded))
            await work.checkpoint()
        return points


async def _summed(of_nodes: list[list[Point]], step: int) -> list[Point]:
    """Return the sums of the points of all nodes; ``step``: seconds from one point to the next.

    The newest point is left out until all nodes have it. Otherwise each chart would end in a fall."""
    newest = [points[-1].at for points in of_nodes if points]
    complete = min((at for at in newest if max(newest) - at <= _LATE * step), default=0)
    by_time: dict[int, list[Point]] = {}
    for points in of_nodes:
        for point in points:
            if point.at <= complete:
                by_time.setdefault(point.at, []).append(point)
    found = []
    work = CooperativeSlice()
    for at in sorted(by_time):
        found.append(total(by_time[at]))
        await work.checkpoint()
    return found


async def drops_by_reason(points: list[Point]) -> dict[str, list[int | float]]:
    """Return the drops of each point by reason, the most frequent reasons first."""
    sums: dict[str, float] = {}
    work = CooperativeSlice()
    for point in points:
        for reason, rate in point.drops.items():
            sums[reason] = sums.get(reason, 0.0) + rate
        await work.checkpoint()
    shown = sorted(sums, key=lambda reason: -sums[reason])[:MAX_REASONS]
    found: dict[str, list[int | float]] = {reason: [0] * len(points) for reason in shown}
    if len(sums) > len(shown):
        found.setdefault(OTHER, [0] * len(points))
    for index, point in enumerate(points):
        for reason, rate in point.drops.items():
            row = found[reason if reason in found else OTHER]
            row[index] = rounded(row[index] + rate)
        await work.checkpoint()
    return found


def _finest(seconds: int) -> Resolution:
    """Return the finest resolution that reaches back so far."""
    for resolution in KEPT:
        if seconds <= _reach(resolution):
            return resolution
    return "ten_minutes"


def _reach(resolution: Resolution) -> int:
    """Return for how many seconds points are kept."""
    return STEPS[resolution] * KEPT[resolution]
