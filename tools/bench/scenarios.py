"""The measured scenarios of ``loadgen/scenarios.sh``, the relevant figures of each, and their goals."""

from typing import NamedTuple

DISK = "durability.level=disk"
"""The default of the shipped configuration, given explicitly."""


class Goal(NamedTuple):
    """The goal of a figure: a multiple of Mosquitto's (``times``), or an absolute number (``value``).

    ``beyond`` is a further goal: another multiple, or the name of a broker.
    """

    times: float | None = None
    value: float | None = None
    beyond: float | str | None = None


class Figure(NamedTuple):
    """A figure; ``path`` is its place in the generator's line (``outer.inner``)."""

    path: str
    unit: str
    more_is_better: bool = True
    goal: Goal = Goal()


class Scenario(NamedTuple):
    """A scenario.

    ``base`` is the one of ``scenarios.sh`` that it varies by ``args`` for the load generator. ``settings`` are for
    Taipan, ``persistence`` and ``nodelay`` for the others; ``pinned`` keeps the broker on one core. ``against`` names
    the brokers for which it is meaningful; empty: all.
    """

    text: str
    figures: tuple[Figure, ...]
    settings: tuple[str, ...] = ()
    base: str = ""
    args: str = ""
    persistence: bool = False
    nodelay: bool = False
    pinned: bool = True
    transport: str = "tcp"
    against: tuple[str, ...] = ()


OWN = ("mosquitto",)


def delivered(times: float | None = None, beyond: float | str | None = None) -> tuple[Figure, ...]:
    """Return the figure of messages per second that reached their subscriber."""
    return (Figure("delivered_per_s", "delivered/s", goal=Goal(times, beyond=beyond)),)


def latency(p50: Goal, p99: Goal) -> tuple[Figure, ...]:
    return Figure("lat_us.p50", "p50 µs", False, p50), Figure("lat_us.p99", "p99 µs", False, p99)


def matching(past_nats: bool, memory_counts: bool) -> tuple[Figure, ...]:
    """Return the figures of matching. ``memory_counts``: there are enough subscriptions to attribute the growth of the
    memory to them."""
    beyond = "nats" if past_nats else None
    return (
        Figure("match.delivered_per_s", "delivered/s", goal=Goal(2, beyond=beyond)),
        Figure("nomatch.published_per_s", "without a match/s"),
        Figure("subs_per_s", "subscribed/s"),
        *((Figure("rss_bytes_per_sub", "bytes per subscription", False, Goal(value=400)),) if memory_counts else ()),
    )


SCENARIOS = {
    "S1": Scenario("1 to 1, QoS 0", delivered(5, "nats")),
    "S2": Scenario("1 to 1, QoS 1", delivered(4.5, 10.0)),
    "S3": Scenario("1 to 1, QoS 2", delivered(2.5, 8.0)),
    "S4": Scenario("1 to 1000, QoS 0", delivered(7, "nats")),
    "S4b": Scenario("1 to 1000, QoS 1", delivered(4, 7.0)),
    "S5": Scenario("1000 to 1, QoS 0", delivered(2, "nats")),
    "S6a": Scenario("500 pairs, QoS 0", delivered(2, "nats")),
    "S6b": Scenario("500 pairs, QoS 1", delivered(3, 5.0)),
    "S7": Scenario(
        "100 pairs at 5,000/s, QoS 0",
        latency(Goal(1.5, beyond=1.0), Goal(value=500, beyond=1.0)),
        nodelay=True,
    ),
    "S7b": Scenario("100 pairs at 5,000/s, QoS 1", latency(Goal(), Goal()), nodelay=True),
    "S8": Scenario(
        "connect",
        (
            Figure("conn_per_s", "connections/s", goal=Goal(0.45, beyond=1.0)),
            Figure("rss_bytes_per_conn", "bytes per connection", False, Goal(value=2560, beyond=2048.0)),
        ),
    ),
    "S9a": Scenario("1,000 mixed filters", matching(True, False)),
    "S9b": Scenario("100,000 mixed filters", matching(True, True), against=("mosquitto", "nats", "aedes")),
    "S9c": Scenario("1,000,000 mixed filters", matching(False, True), against=OWN),
    "S10": Scenario(
        "100,000 retained messages",
        (
            Figure("publish_per_s", "published/s", goal=Goal(0.55, beyond=1.0)),
            Figure("replay_per_s", "replayed/s", goal=Goal(2)),
        ),
        persistence=True,
    ),
    "S11": Scenario(
        "connect, subscribe, publish, receive, disconnect",
        (Figure("cycles_per_s", "cycles/s", goal=Goal(0.55, beyond=1.0)),),
    ),
    "S12": Scenario(
        "50,000 messages queued offline, QoS 1",
        (
            Figure("drain_per_s", "drained/s", goal=Goal(0.8, beyond=2.0)),
            Figure("enqueue_per_s", "queued/s", goal=Goal(0.8, beyond=2.0)),
        ),
        persistence=True,
    ),
    "S13": Scenario("1 to 1, 1 MiB payload", (Figure("mib_per_s", "MiB/s", goal=Goal(1.6, beyond="aedes")),)),
    "D2": Scenario(
        "durable: S2 with persistent sessions, Mosquitto in memory",
        delivered(1.8, 3.0),
        base="S2",
        args="--clean 0",
        against=OWN,
    ),
    "D2u": Scenario("D2 on both cores", delivered(), base="S2", args="--clean 0", pinned=False, against=OWN),
    "V5": Scenario("S1 with 5.0", delivered(), base="S1", args="--version 5", against=OWN),
    "V5p": Scenario("5.0, five properties", delivered(7), base="S1", args="--version 5 --props 1", against=OWN),
    "V5a": Scenario("5.0, topic alias", delivered(), base="S1", args="--version 5 --alias 1", against=OWN),
    "V5i": Scenario("5.0, subscription identifier", delivered(), base="S1", args="--version 5 --subid 1", against=OWN),
    "V5x": Scenario(
        "5.0, properties, alias and identifier",
        delivered(3),
        base="S1",
        args="--version 5 --props 1 --alias 1 --subid 1",
        against=OWN,
    ),
    "WS": Scenario("S1 over WebSocket", delivered(7), base="S1", args="--ws /mqtt", transport="ws", against=OWN),
    "WSb": Scenario("S2 over WebSocket", delivered(2.5), base="S2", args="--ws /mqtt", transport="ws", against=OWN),
    "TLS": Scenario("S1 over TLS", delivered(), base="S1", args="--tls 1", transport="ssl", against=OWN),
    "TLSb": Scenario("S2 over TLS", delivered(4, 8.0), base="S2", args="--tls 1", transport="ssl", against=OWN),
    "TLSc": Scenario(
        "connect over TLS, 2,000",
        (
            Figure("conn_per_s", "connections/s"),
            Figure("rss_bytes_per_conn", "bytes per connection", False, Goal(value=17_408, beyond=8192.0)),
        ),
        base="S8",
        args="--tls 1 --conns 2000",
        transport="ssl",
        against=OWN,
    ),
    "SH": Scenario("100 publishers to a shared subscription of 100, QoS 0", delivered(), against=OWN),
    "MX": Scenario("20 bytes to 16 KiB on 10,000 topics, 100 pairs, QoS 1", delivered(), against=OWN),
    "SLq": Scenario(
        "SL while that reader reads",
        latency(Goal(), Goal()),
        nodelay=True,
        against=OWN,
    ),
    "SL": Scenario(
        "1,000 pairs at 5,000/s, one of them 20 MiB/s to a reader that stopped: the others",
        latency(Goal(), Goal()),
        nodelay=True,
        against=OWN,
    ),
    "RC": Scenario(
        "10,000 persistent sessions disconnected, back at once",
        (Figure("back_per_s", "back/s"), Figure("lat_us.p99", "p99 µs until CONNACK", False)),
        persistence=True,
        against=OWN,
    ),
}
"""All scenarios, in the order of the page."""

TABLE = [name for name in SCENARIOS if name.startswith("S") and name not in ("SH", "SL", "SLq")]
