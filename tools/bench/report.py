"""Writes sections of ``docs/performance.md`` and its plot from stored results: ``python -m tools.bench.report
FILE...``.

If more than one file has a scenario, the last one is used.
"""

import statistics
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from tools.bench.brokers import ROOT
from tools.bench.page import PAGE, write
from tools.bench.plot import COLOURS, Bar, draw
from tools.bench.results import Measurement, Runs, cost, faults, joined, load
from tools.bench.scenarios import SCENARIOS, TABLE, Figure
from tools.bench.verdict import beyond, falls, goal, ratio, spread

PLOT = ROOT / "docs" / "performance.svg"
AGAINST, GROWTH, COSTS, YOURSELF = (
    "Against other brokers",
    "How it grows",
    "What costs what",
    "Measuring it yourself",
)

COSTED = ("S1", "S2", "S3", "S4", "S4b", "D2", "V5", "V5p", "V5a", "V5i", "V5x", "WS", "WSb", "TLS", "TLSb", "SH", "MX")
YOURSELF_TEXT = """```
make bench                            # everything, three rounds of three seconds; writes these sections
make bench ONLY="S1 S2"               # some scenarios; the page stays, the figures are kept
make bench ONLY=table BROKERS="taipan mosquitto" ROUNDS=5 DUR=5
.venv/bin/python -m tools.bench.report tools/bench/results/FILE.json    # the page again, from kept figures
```

This requires Linux, a C compiler and two cores: one for the broker, one for the load. `libssl-dev` lets the load
generator use TLS. Compare only figures that one run measured side by side: absolute figures change with the machine
and with its other work.

Taipan runs as with `make run`: compiled if possible, and interpreted with `COMPILED=no`. It uses the Python of `.venv`.
If that Python was built without profile-guided optimisation, it uses the distribution's Python of the same version
instead, unless you set `NODE_PYTHON=own`. The other brokers are those that are installed: Mosquitto and NATS from the
distribution (`mosquitto`, `nats-server`), aedes from npm (`tools/bench/node`), aMQTT from `make setup`. Each run is
kept as JSON in `results` below `tools/bench` (not in git), with the machine, the commit, and whether Taipan was
compiled.

To put load on your own node, wherever it runs, use the load generator. It prints one line of JSON:

```
make -C tools/loadgen
tools/loadgen/loadgen pubsub --host 192.0.2.1 --pubs 500 --subs 500 --qos 1 --rate 20000 --duration 30
tools/loadgen/loadgen           # every option
```

Further measurements write a section of this page, or print a few lines:

| Command | What it measures |
|---|---|
| `python -m tools.bench.level` | clean sessions at both levels of durability |
| `python -m tools.bench.latency` | PUBACK under a flood |
| `python -m tools.bench.rules` | rules |
| `python -m tools.bench.api` | listings on a busy node |
| `python -m tools.bench.idle` | idle connections |
| `python -m tools.bench.routing` | the topic index alone |
| `python -m tools.bench.restart` | the duration of a start |

They start Taipan compiled if `make compile` was run for these sources, and interpreted if the environment has
`TAIPAN_COMPILED=no`."""
FIRST_LOOK = "**Fewer than three rounds: a first look, not a measurement.**"


def shown(value: float) -> str:
    """Return a number with three significant digits and thousands separators."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _spread(median: float, lowest: float, highest: float, form: Callable[[float], str] = shown) -> str:
    return form(median) + (f" ({form(lowest)} to {form(highest)})" if lowest != highest else "")


def _cell(runs: Runs, scenario: str, broker: str, about: Figure) -> str:
    found = spread(runs, scenario, broker, about.path)
    return _spread(*found) if found else "-"


def _measured(runs: Runs) -> list[str]:
    return [name for name in SCENARIOS if any(scenario == name for scenario, _ in runs)]


def wrong(runs: Runs, scenario: str, brokers: list[str]) -> str:
    """Return the faults of a scenario for each broker, for a table cell."""
    found = [
        f"{broker} {name} {value}"
        for broker in brokers
        for row in runs.get((scenario, broker), [])
        for name, value in faults(row).items()
    ]
    return "; ".join(dict.fromkeys(found)).replace("|", "/").replace("\n", " ") or "none"


def _by_processor(runs: Runs, scenario: str, about: Figure) -> str:
    """Return the ratio of Mosquitto's processor time per message to Taipan's, for deliveries."""
    ours, theirs = (
        [cost(row) for row in runs.get((scenario, broker), []) if cost(row)] for broker in ("taipan", "mosquitto")
    )
    if about.path != "delivered_per_s" or not ours or not theirs:
        return ""
    return f"{statistics.median(theirs) / statistics.median(ours):.2f}"


def scenario_table(measured: Measurement) -> list[str]:
    """Return a line for each figure: medians with ranges of Taipan and Mosquitto, ratio, goals and faults."""
    runs = measured.runs
    lines = ["| scenario | | taipan | mosquitto | ratio | by processor | goal | beyond | faults |", "|" + "---|" * 9]
    for scenario in _measured(runs):
        for number, about in enumerate(SCENARIOS[scenario].figures):
            times = ratio(runs, scenario, about)
            cells = [
                "" if number else f"{scenario}: {SCENARIOS[scenario].text}",
                about.unit,
                _cell(runs, scenario, "taipan", about),
                _cell(runs, scenario, "mosquitto", about),
                f"{times:.2f}" if times is not None else "-",
                _by_processor(runs, scenario, about),
                goal(runs, scenario, about),
                beyond(runs, scenario, about),
                "" if number else wrong(runs, scenario, ["taipan", "mosquitto"]),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def others_table(measured: Measurement) -> list[str]:
    """Return a line for each scenario: the medians of the other brokers with Taipan's ratio to each; empty if there are
    none."""
    runs = measured.runs
    others = [name for name in COLOURS if name in measured.brokers]
    if not others:
        return []
    lines = [f"| scenario | | {' | '.join(others)} |", "|" + "---|" * (2 + len(others))]
    for scenario in _measured(runs):
        for about in SCENARIOS[scenario].figures:
            cells = []
            for other in others:
                theirs, times = spread(runs, scenario, other, about.path), ratio(runs, scenario, about, other)
                if theirs is None:
                    cells.append("-")
                    continue
                unsound = any(faults(row) for row in runs[scenario, other])
                ours = f"; {times:.2f}" if times is not None else ""
                cells.append(f"{shown(theirs.median)}{ours}" + (", faulty" if unsound else ""))
            if any(cell != "-" for cell in cells):
                lines.append(f"| {scenario} | {about.unit} | {' | '.join(cells)} |")
    return lines


def bars(measured: Measurement) -> list[Bar]:
    """Return the data of the plot: every figure that both Taipan and Mosquitto have."""
    found = []
    for scenario in _measured(measured.runs):
        for about in SCENARIOS[scenario].figures:
            ours = ratio(measured.runs, scenario, about)
            if ours is None or ours <= 0:
                continue
            others = {}
            for name in COLOURS:
                theirs = ratio(measured.runs, scenario, about, broker=name)
                if theirs is not None and theirs > 0:
                    others[name] = theirs
            wanted = about.goal.times
            if wanted is not None and not about.more_is_better:
                wanted = 1 / wanted
            found.append(Bar(f"{scenario} {about.unit}", ours, others, wanted))
    return found


def paragraph(*sentences: str) -> str:
    """Return sentences as lines of the width of the other pages."""
    return textwrap.fill(" ".join(sentences), 118, break_long_words=False, break_on_hyphens=False)


def first_look(about: dict[str, str]) -> bool:
    """Return whether any of the joined runs had too few rounds for a reliable figure."""
    return min(int(each) for each in about["rounds"].split("; ")) < 3


def does(runs: Runs) -> list[str]:
    """Return a table of what one core does, with the ratios to Mosquitto; empty if nothing of it was measured."""
    rows = [
        ("S1", 0, "QoS 0, one publisher to one subscriber", "messages/s"),
        ("S2", 0, "QoS 1, one publisher to one subscriber", "messages/s"),
        ("S3", 0, "QoS 2, one publisher to one subscriber", "messages/s"),
        ("S4", 0, "QoS 0, each message to a thousand subscribers", "deliveries/s"),
        ("S12", 0, "messages queued for a client that comes back", "messages/s"),
        ("S8", 0, "new connections", "connections/s"),
        ("S8", 1, "memory of an idle connection", "bytes"),
        ("S7", 0, "at 5,000 messages/s, half of the messages arrive within", "µs"),
        ("S7", 1, "at 5,000 messages/s, 99 of 100 messages arrive within", "µs"),
    ]
    lines = ["| One core, payloads of 64 bytes | Taipan | Ratio to Mosquitto |", "|---|---|---|"]
    for scenario, number, text, unit in rows:
        about = SCENARIOS[scenario].figures[number]
        found, times = spread(runs, scenario, "taipan", about.path), ratio(runs, scenario, about)
        if found:
            lines.append(f"| {text} | **{shown(found.median)}** {unit} | {f'{times:.2f}' if times else '-'} |")
    return lines if len(lines) > 2 else []


def opening(measured: Measurement) -> str:
    """Return the head of the page: what one core does, if it was measured often enough."""
    about = measured.about
    head = FIRST_LOOK if first_look(about) else "\n".join(does(measured.runs))
    purpose = paragraph(
        "How much one node does, how that compares with other brokers, and how to measure your own machine. A ratio",
        "above 1 means that Taipan is ahead.",
    )
    node = paragraph(
        "A node is one process that uses one core. A second thread waits for the disk. A second core serves that",
        "thread, the system's network stack and everything else on the machine. To use more cores, run",
        "[several nodes](using-all-cores.md). All figures were measured with the default configuration: access checks,",
        "metrics, the rule engine and the management API are on, and the durability level is `disk`.",
    )
    return "\n\n".join(each for each in ("# Performance", purpose, head, node) if each) + "\n"


def measured_how(about: dict[str, str], brokers: dict[str, str]) -> str:
    """Return what ran where and when."""
    versions = ", ".join(f"{name} {number}" for name, number in brokers.items())
    taken = f"Written by `{about['command']}` on {about['taken']} at commit {about['commit']}: {versions}."
    on = f"{about['cpu']}; {about['system']}; {about['python']}, uvloop {about['uvloop']}."
    on += f" Taipan ran {about['modules']}."
    if "busy" in about:
        on += f"\nThe load average before the start was {about['busy']}; this other work lowers the figures."
    return f"{taken}\n{on}"


def against(measured: Measurement) -> str:
    """Return the table of comparisons with the other brokers."""
    about, runs = measured.about, measured.runs
    all_goals = [goal(runs, name, each) for name in _measured(runs) for each in SCENARIOS[name].figures]
    goals = [each for each in all_goals if each != "-"]
    met = sum(each.endswith(": met") for each in goals)
    how = paragraph(
        f"The broker runs on one core, the load generator ({about['pinning']}) on another. One broker runs at a time,",
        "started again for every figure; each round measures all brokers in turn. Mosquitto has `allow_anonymous",
        "true` and `max_queued_messages 0`; `set_tcp_nodelay true` if latency is measured; and persistence in S10, S12",
        "and RC. Its other settings are the defaults. (Mosquitto saves every half hour, Taipan before each",
        f"acknowledgement.) Figures are medians over {about['rounds']} round(s) of {about['duration']} s with their",
        "range. A ratio above 1 means that Taipan is ahead. *By processor* compares the processor time of the brokers",
        "per message, which other work on the machine disturbs less. *Goal* and *beyond* are our targets: multiples of",
        "Mosquitto's figure (×), absolute figures, or another broker. Faults are messages lost, duplicated or out of",
        "order, and connections or runs that failed. `tools/loadgen/README.md` describes the scenarios; the",
        "[results](results.md#missed-goals) have the reasons for missed goals.",
    )
    if first_look(about):
        how += f"\n\n{FIRST_LOOK}"
    parts = [
        "![Ratios to Mosquitto](performance.svg)",
        how,
        measured_how(about, measured.brokers),
        f"**{met} of {len(goals)} goals are met.**",
        "\n".join(scenario_table(measured)),
    ]
    raised = {name: SCENARIOS[name].settings for name in _measured(runs) if SCENARIOS[name].settings}
    if raised:
        told = "; ".join(f"{name}: `{' '.join(settings)}`" for name, settings in raised.items())
        parts.append(paragraph(f"Settings of Taipan that differ from the defaults: {told}."))
    rest = others_table(measured)
    if rest:
        parts += [
            paragraph(
                "Other brokers: the median, and Taipan's ratio to it. *Faulty* brokers lost messages, changed their",
                "order, or failed. NATS has JetStream, larger limits and otherwise its defaults; aedes keeps all data",
                "in memory, behind a plain TCP server. A dash means that the broker was not measured, or cannot do it.",
            ),
            "\n".join(rest),
        ]
    return "\n\n".join(parts)


def growth(measured: Measurement) -> str:
    """Return how the costs of a message, a subscription and a connection grow with their number."""
    runs = measured.runs
    table = [
        "| subscriptions | matched and delivered/s | published without a match/s | subscribed/s | bytes each |",
        "|---|---|---|---|---|",
    ]
    for scenario, text in (("S9a", "1,000"), ("S9b", "100,000"), ("S9c", "1,000,000")):
        if (scenario, "taipan") in runs:
            cells = [_cell(runs, scenario, "taipan", each) for each in SCENARIOS[scenario].figures]
            table.append(f"| {text} | {' | '.join([*cells, '-'][:4])} |")
    parts = [
        paragraph(
            "**Subscriptions**: all filters differ; 70 % have no wildcards, 20 % have `+`, 10 % have `#`. One",
            "publisher sends QoS 0 messages to matching topics in random order.",
        ),
        "\n".join(table),
    ]
    fallen = falls(runs)
    if fallen is not None:
        parts.append(
            paragraph(
                f"From a thousand to a million subscriptions matching falls {fallen:.2f} times (goal: at most 2.5: "
                + ("met)." if fallen <= 2.5 else "**missed**)."),
                "The node finds a topic that was published to recently in one step, whatever the number of",
                "subscriptions. Any other topic costs a look-up for each shape of filters, and a look-up among a",
                "million filters is forty times as expensive as among a thousand, because nothing of it is in the",
                "processor's",
                "caches ([measured](results.md#s9-matching-among-a-million-filters)).",
            )
        )
    said = []
    each, over_tls = (spread(runs, name, "taipan", "rss_bytes_per_conn") for name in ("S8", "TLSc"))
    if each:
        said.append(
            f"An idle connection uses {shown(each.median)} bytes of the process's memory, and the system's socket "
            "buffers in addition."
        )
    if over_tls:
        said.append(f"Over TLS it uses {shown(over_tls.median)} bytes.")
    back, wait = (spread(runs, "RC", "taipan", each.path) for each in SCENARIOS["RC"].figures)
    if back and wait:
        said.append(
            f"If ten thousand clients with persistent sessions are disconnected together, they reconnect at "
            f"{shown(back.median)}/s; 99 of 100 clients wait less than {wait.median / 1e6:.1f} s."
        )
    if said:
        parts.append(paragraph("**Connections**:", *said))
    quiet, stuck = (spread(runs, name, "taipan", "lat_us.p99") for name in ("SLq", "SL"))
    if quiet and stuck:
        times = stuck.median / quiet.median
        parts.append(
            paragraph(
                "**Slow readers**: one of a thousand clients stops reading while 20 MiB/s are on their way to it. The",
                f"p99 of the 999 others goes from {shown(quiet.median)} to {shown(stuck.median)} µs, {times:.2f} times "
                + ("(goal: at most 2: met)." if times <= 2 else "(goal: at most 2: **missed**)."),
            )
        )
    return "\n\n".join(parts)


def costs(measured: Measurement) -> str:
    """Return Taipan's processor time per message, by kind of work."""
    runs = measured.runs
    basis = [cost(row) for row in runs.get(("S1", "taipan"), [])]
    plain = statistics.median(basis) if basis else 0.0
    table = ["| scenario | µs per message | times S1 |", "|---|---|---|"]
    for scenario in COSTED:
        values = [cost(row) for row in runs.get((scenario, "taipan"), [])]
        if not any(values):
            continue
        middle = statistics.median(values)
        cells = [
            f"{scenario}: {SCENARIOS[scenario].text}",
            _spread(middle, min(values), max(values), "{:.2f}".format),
            f"{middle / plain:.1f}" if plain else "-",
        ]
        table.append(f"| {' | '.join(cells)} |")
    intro = paragraph(
        "Microseconds of the node's processor time per delivered message, of all its threads, user and system. A core",
        "has a million microseconds each second; the cost of your own mix is the sum. For rules:",
        "`python -m tools.bench.rules`.",
    )
    return "\n\n".join([intro, "\n".join(table)])


def write_page(measured: Measurement, page: Path = PAGE, plot: Path = PLOT) -> list[Path]:
    """Write this script's sections and the plot; other sections of the page stay unchanged."""
    write("", opening(measured), page)
    write(AGAINST, against(measured), page)
    write(GROWTH, growth(measured), page)
    write(COSTS, costs(measured), page)
    write(YOURSELF, YOURSELF_TEXT, page)
    plot.write_text(draw("Taipan and others, as multiples of Mosquitto", bars(measured)), encoding="utf-8")
    return [page, plot]


def main() -> int:
    if not sys.argv[1:]:
        print("usage: python -m tools.bench.report FILE...", file=sys.stderr)
        return 2
    measured = joined(load(Path(name)) for name in sys.argv[1:])
    absent = [name for name in TABLE if (name, "taipan") not in measured.runs]
    if absent:
        print(f"not measured: {' '.join(absent)}", file=sys.stderr)
    for path in write_page(measured):
        print(f"{path.relative_to(ROOT)} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
