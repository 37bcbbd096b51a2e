"""Measure the cost of the dashboard's pages in Chromium, against a node with many sessions and a full history.

python -m tools.bench.dashboard [--sessions 200000] [--rate 10000] [--rounds 3] [--seconds 5]
                                [--only first,list,tasks,mqtt] [--one-core]

``first``: size of the first view, and the time until it appears on a processor that is slowed down by a factor of four.
``list``: the time from a keystroke, or *Next*, to the new list. ``tasks``: the longest task of each page while the node
handles messages. ``mqtt``: the p99 latency of MQTT with and without an open Overview. The node runs as in ``make run``
and stays on one core. Chromium and the traffic use any free core; with ``--one-core`` they share one core, which the
node does not use."""

import argparse
import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from taipan.broker.compiled import outcome
from taipan.management.history.history import KEPT, STEPS
from taipan.management.history.point import FIGURES, Point
from taipan.management.history.ring_file import RingFile
from tests.support.browser import CHROMIUM, Dashboard, DashboardNode, until

from .api import answer_of, fill, part, pin, run_traffic
from .live import processor_time

SLOWED: Final = 4
PAGES: Final = (
    "/overview", "/overview?range=hour", "/clients", "/clients/client-7", "/topics", "/subscriptions", "/retained",
    "/rules", "/tool", "/access", "/access/login", "/trouble", "/trouble/reasons", "/trouble/slow", "/trouble/traces",
    "/node", "/node/configuration", "/node/listeners",
)  # fmt: skip
FIRST_VIEWS: Final = (("login form", None, "input[type=password]"), ("Overview", "administrator", ".tile-value"))

# When an element is there, and how long each task took.
WATCH: Final = """(() => {
  window.tasks = []; window.seen = 0;
  const noted = (found) => { for (const one of found.getEntries()) tasks.push([one.startTime, one.duration]); };
  new PerformanceObserver(noted).observe({ type: "longtask", buffered: true });
  const look = () => {
    if (document.querySelector(%r)) seen = performance.now();
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})()"""

# From the key's or button's event to the frame after the rows have changed.
CHANGE: Final = """async (act) => {
  const rows = () => [...document.querySelectorAll("tbody tr td:first-child")].map((one) => one.textContent).join();
  const before = rows(), begun = performance.now();
  if (act === "next") [...document.querySelectorAll(".pager button")].at(-1).click();
  else {
    const field = document.querySelector("[data-search]");
    const { set } = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value");
    set.call(field, act);
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }
  return new Promise((done) => {
    const look = new MutationObserver(() => {
      if (rows() === before) return;
      look.disconnect();
      requestAnimationFrame(() => setTimeout(() => done(performance.now() - begun)));
    });
    look.observe(document.body, { childList: true, subtree: true, characterData: true });
    setTimeout(() => done(-1), 10000);
  });
}"""


def fill_history(data_dir: Path) -> None:
    """Write points for the whole period of the node's history."""
    rings = list(zip(KEPT.values(), STEPS.values(), strict=True))
    file = RingFile(data_dir / "taipan.history", tuple(KEPT.values()))
    file.open(lambda part, at: at // rings[part][1] % rings[part][0])
    now = int(time.time())
    for resolution, (size, step) in enumerate(rings):
        for at in range(now // step - size + 1, now // step):
            figures: list[int | float] = [float((at * number) % 9973) for number in range(1, len(FIGURES) + 1)]
            drops: dict[str, int | float] = {"queue_full": at % 7, "not_authorized": at % 3}
            file.write(resolution, at % size, msgspec.msgpack.encode(Point(at * step, float(step), figures, drops)))
    file.close()


class Measuring:
    def __init__(self, arguments: argparse.Namespace, node: DashboardNode, browser: Browser, traffic: Any) -> None:
        self.arguments = arguments
        self.node = node
        self.browser = browser
        self.traffic = traffic
        self.dashboard = Dashboard(browser, node)

    async def measure_first(self) -> None:
        print(f"| first view, processor slowed {SLOWED} times | KB | there after, ms | interactive after, ms |")
        print("|---|---|---|---|")
        for name, role, element in FIRST_VIEWS:
            found: list[tuple[float, float, float]] = []
            for _ in range(self.arguments.rounds):
                context = await self.dashboard.context(role)
                found.append(await self._first(context, element))
                await context.close()
            size, there, free = (statistics.median(each) for each in zip(*found, strict=True))
            print(f"| {name} | {size / 1000:.1f} | {there:.0f} | {free:.0f} |", flush=True)

    async def _first(self, context: BrowserContext, element: str) -> tuple[float, float, float]:
        await context.add_init_script(WATCH % element)
        page = await context.new_page()
        session = await context.new_cdp_session(page)
        await session.send("Emulation.setCPUThrottlingRate", {"rate": SLOWED})
        await session.send("Network.enable")
        octets = 0

        def loaded(event: dict[str, Any]) -> None:
            nonlocal octets
            octets += int(event["encodedDataLength"])

        session.on("Network.loadingFinished", loaded)
        await self.dashboard.go(page, "/overview")
        await until(page, "window.seen > 0")
        size = octets
        await asyncio.sleep(2.0)  # tasks that begin meanwhile belong to it
        seen, tasks = await page.evaluate("[window.seen, window.tasks]")
        # Until the page answers to a click: the end of the last long task that follows the one before closely.
        free = seen
        for start, took in tasks:
            if start <= free + 50:
                free = max(free, start + took)
        return float(size), seen, free

    async def measure_list(self) -> None:
        page = await self.dashboard.open("/clients")
        await until(page, "document.querySelectorAll('tbody tr').length === 50")
        last = f"{self.arguments.sessions:d}"
        steps = [last[: end + 1] for end in range(len(last))] + ["next", "client-", "next", "next", ""]
        took: dict[str, list[float]] = {}
        for _ in range(self.arguments.rounds):
            for number, act in enumerate(steps):
                found = await page.evaluate(CHANGE, act)
                if found >= 0:  # the rows may be the same
                    took.setdefault("next" if act == "next" else f"{number}: {act!r}", []).append(found)
                await asyncio.sleep(0.3)
        print(f"\n| {self.arguments.sessions:,} clients: the list after | median, ms | longest |")
        print("|---|---|---|")
        for name, each in took.items():
            print(f"| {name} | {statistics.median(each):.0f} | {max(each):.0f} |")

    async def measure_tasks(self) -> None:
        print(f"\n| page, {self.arguments.rate:,} messages/s | tasks above 50 ms | longest, ms |")
        print("|---|---|---|")
        context = await self.dashboard.context()
        await context.add_init_script(WATCH % "main")
        for path in PAGES:
            page = await context.new_page()
            await self.dashboard.go(page, path)
            await asyncio.sleep(self.arguments.seconds)
            tasks = [took for _, took in await page.evaluate("window.tasks")]
            print(f"| {path} | {len(tasks)} | {max(tasks, default=0):.0f} |", flush=True)
            await page.close()

    async def measure_mqtt(self) -> None:
        found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        assert self.node.process is not None
        process = self.node.process.process.pid
        for _ in range(self.arguments.rounds * 2):
            for is_open in found:
                page: Page | None = None
                if is_open:
                    page = await self.dashboard.open("/overview")
                    await until(page, "document.querySelectorAll('canvas').length >= 7")
                await asyncio.sleep(1.0)
                self._ask()
                before, begun = processor_time(process), time.perf_counter()
                await asyncio.sleep(self.arguments.seconds)
                used = (processor_time(process) - before) / (time.perf_counter() - begun)
                found[is_open].append((used * 100, part(self._ask(), 0.99)))
                if page is not None:
                    await page.context.close()
        print("\n| Overview | node, % of a core | MQTT p99, ms, each round | median |")
        print("|---|---|---|---|")
        for is_open, each in found.items():
            used = statistics.median(one for one, _ in each)
            late = [late for _, late in each]
            text = ", ".join(f"{one:.2f}" for one in late)
            print(f"| {'open' if is_open else 'closed'} | {used:.1f} | {text} | {statistics.median(late):.2f} |")

    def _ask(self) -> list[float]:
        """Return the latencies since the last call."""
        self.traffic.send("latencies")
        latencies: list[float] = answer_of(self.traffic)
        return latencies


async def measure(arguments: argparse.Namespace) -> None:
    cores = sorted(os.sched_getaffinity(0))
    mine, others = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
    if not arguments.one_core:
        mine = None
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="taipan-bench-") as directory:
        node = DashboardNode(Path(directory))
        data_dir = Path(directory) / "data"
        data_dir.mkdir()
        fill(data_dir, arguments.sessions, 1)
        fill_history(data_dir)
        await node.start(timeout=120.0)
        assert node.process is not None
        for thread in Path(f"/proc/{node.process.process.pid}/task").iterdir():
            if others is not None:
                os.sched_setaffinity(int(thread.name), {others})
        pipe, end = spawn.Pipe()
        rate = arguments.rate
        traffic = spawn.Process(target=run_traffic, args=(node.ports["tcp"], rate, end, mine), daemon=True)
        pin(mine)
        print(f"The hot path is {outcome}; {len(cores)} cores.\n")
        try:
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(
                    executable_path=str(CHROMIUM), args=["--no-sandbox"] if os.geteuid() == 0 else []
                )
                measuring = Measuring(arguments, node, browser, pipe)
                for name in ("first", "list"):
                    if name in arguments.only:
                        await getattr(measuring, f"measure_{name}")()
                traffic.start()
                for name in ("tasks", "mqtt"):
                    if name in arguments.only:
                        await getattr(measuring, f"measure_{name}")()
                pipe.send("stop")
                traffic.join(20)
                await browser.close()
        finally:
            await node.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=200_000)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", default="first,list,tasks,mqtt", type=lambda text: text.split(","))
    parser.add_argument("--one-core", action="store_true")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
