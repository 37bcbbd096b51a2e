"""The calls of one PUBLISH, from the publisher's socket to the subscriber's, recorded from a running node.

``python -m tests.publish_path`` writes them into docs/architecture.md; ``make docs-tables`` calls it.
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from tests.support.node import start_node
from tests.support.wire import Publish

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "architecture.md"
BEGIN: Final = "<!-- made by make docs-tables: the calls of a PUBLISH -->\n```\n"
END: Final = "```\n<!-- end of the calls -->"
COLUMN: Final = 60
MAX_CALLS: Final = 18
MAX_FILES: Final = 10
NOT_OF_THE_PATH: Final = ("broker/server.py", "broker/loop/ticker.py", "broker/observability/lag.py")
"""What the loop does beside: housekeeping at the end of an iteration, timers, the probe of its lag."""


class Call(NamedTuple):
    depth: int
    name: str
    file: str


async def record() -> list[Call]:
    """The calls of functions of the broker for a PUBLISH of QoS 0 with one subscriber."""
    node = await start_node(sys_topics={"interval": 0, "heartbeat": 0})
    try:
        subscriber, publisher = await node.client("subscriber"), await node.client("publisher")
        await subscriber.subscribe("garden/+", qos=0)
        for _ in range(3):  # what is found for a topic is remembered
            await publisher.publish("garden/temperature", b"21.5")
            await subscriber.expect_publish("garden/temperature", b"21.5")
        node.server.broker.topic_sample.left = 2  # not the one of many that the sample of topics looks at
        calls: list[Call] = []

        def on_event(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call" and (file := place(frame.f_code)) is not None:
                above = 0
                caller = frame.f_back
                while caller is not None:
                    above += place(caller.f_code) is not None
                    caller = caller.f_back
                calls.append(Call(above, frame.f_code.co_qualname, file))

        sys.setprofile(on_event)
        try:
            await publisher.send(Publish("garden/temperature", b"21.5"))
            await subscriber.expect_publish("garden/temperature", b"21.5")
        finally:
            sys.setprofile(None)
        return list(_of_the_path(calls))
    finally:
        await node.stop()


def _of_the_path(calls: list[Call]) -> Iterator[Call]:
    below: int | None = None
    for call in calls:
        if below is not None and call.depth > below:
            continue
        below = call.depth if call.file in NOT_OF_THE_PATH else None
        if below is None:
            yield call


def place(code: CodeType) -> str | None:
    """The file of a function of the broker, from the root of the repository."""
    for part in ("broker", "ruleengine", "management"):
        for base in (ROOT / "taipan" / part, ROOT / part):
            if code.co_filename.startswith(f"{base}/"):
                return f"{part}/{Path(code.co_filename).relative_to(base)}"
    return None


def rendered(calls: list[Call]) -> str:
    return "".join(f"{'  ' * call.depth + call.name:<{COLUMN}}{call.file}\n" for call in calls)


def written(page: str, calls: list[Call]) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{PAGE} has no place for the calls"
    return before + begin + rendered(calls) + end + after


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8"), asyncio.run(record())), "utf-8")
