"""What the top lists cost, in processor time of this process, which other programs hardly change.

``python -m tools.bench.top [ROUNDS]`` (400). S1 and S6b: a node without sockets routes messages, by turns of 20 ms with
the topics sampled and without a sample; the countdown of the sample, which both have, is timed by itself. S8: the four
numbers that a connection remembers for the sweep, and a connection that is opened and closed. Then the sweep over
200,000 clients that all send.
"""

import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

from taipan.broker.client_sweep import PART
from taipan.broker.observability.top.topic_sample import SAMPLES
from tests.support.fake_node import FakeNode
from tests.support.loud_clients import add_clients, sweep
from tests.support.wire import Publish, encode

Work = Callable[[], tuple[int, float]]
"""Routes some messages; their number, and the processor time of the node for them."""

TURN = 0.02
RUN = 50
"""Messages of one read of S1."""
PAIRS = 50
WINDOW = 10
"""Messages of one read of S6b."""
CLIENTS = 200_000
NEVER = 1 << 60
clock = time.process_time


def s1(node: FakeNode) -> Work:
    """One client publishes to another at QoS 0."""
    reader, writer = node.connect("r", version=4), node.connect("w", version=4)
    reader.subscribe("t")
    data = b"".join([encode(Publish("t", b"x" * 16), 4)] * RUN)

    def work() -> tuple[int, float]:
        begun = clock()
        writer.transport.feed(data)
        node.run()
        spent = clock() - begun
        assert len(reader.transport.take()) == len(data)
        return RUN, spent

    return work


def s6b(node: FakeNode) -> Work:
    """Each of many clients publishes to another one at QoS 1."""
    pairs = []
    for number in range(PAIRS):
        reader, writer = node.connect(f"r{number}", version=4), node.connect(f"w{number}", version=4)
        topic = f"t/{number:02}"
        reader.subscribe(topic, qos=1)
        data = b"".join(encode(Publish(topic, b"x" * 16, 1, packet_id=each), 4) for each in range(1, WINDOW + 1))
        pairs.append((reader, writer, data))

    def work() -> tuple[int, float]:
        spent = 0.0
        for reader, writer, data in pairs:
            begun = clock()
            writer.transport.feed(data)
            node.run()
            spent += clock() - begun
            got, size = reader.transport.take(), len(data) // WINDOW
            acks = b"".join(b"\x40\x02" + got[at + 8 : at + 10] for at in range(0, len(got), size))
            assert len(got) == len(data) and len(writer.transport.take()) == 4 * WINDOW
            begun = clock()
            reader.transport.feed(acks)
            node.run()
            spent += clock() - begun
        return PAIRS * WINDOW, spent

    return work


def sampled(name: str, make: Callable[[FakeNode], Work], rounds: int) -> None:
    """Time per message by turns with the sample and without, at as many samples a second as a busy core takes."""
    node = FakeNode()
    work = make(node)
    sample = node.broker.topic_sample
    busy = 0.0
    left = 0
    costs: dict[bool, list[float]] = {True: [], False: []}
    number = 0
    while len(costs[True]) < rounds or len(costs[False]) < rounds:
        number += 1
        counted = bool((number + number // 2) % 2)  # with, without, without, with
        sample.left = left if counted else NEVER
        messages, spent = 0, 0.0
        while spent < TURN:
            some, took = work()
            messages, spent = messages + some, spent + took
        if counted:
            left = sample.left
            if int(busy + spent) > int(busy):
                node.clock.time += 1
                begun = clock()
                sample.tick(node.clock.time)
                spent += clock() - begun
            busy += spent
        if busy > 2.5:  # the sample has adapted to the rate
            costs[counted].append(spent / messages)
    with_it, without = (statistics.mean(costs[each]) for each in (True, False))
    middle_with, middle = (statistics.median(costs[each]) for each in (True, False))
    down = countdown() / (RUN if make is s1 else WINDOW)
    print(
        f"{name}: {without * 1e6:.3f} us per message without, {with_it * 1e6:.3f} with: "
        f"{(with_it / without - 1) * 100:+.2f} % (medians {(middle_with / middle - 1) * 100:+.2f} %); "
        f"the countdown {down / without * 100:.2f} %"
    )


def best(work: Callable[[int], object], times: int, goes: int = 15) -> float:
    """Seconds for one of ``times``, in the cheapest go."""
    found = []
    for _ in range(goes):
        begun = clock()
        work(times)
        found.append((clock() - begun) / times)
    return min(found)


def countdown() -> float:
    """Seconds that the countdown of one run of messages takes."""
    sample = FakeNode().broker.topic_sample
    broker = SimpleNamespace(topic_sample=sample)
    sample.left = NEVER

    def down(times: int) -> None:
        for _ in range(times):
            one = broker.topic_sample
            one.left -= 1
            if one.left < 0:
                raise AssertionError

    def nothing(times: int) -> None:
        for _ in range(times):
            pass

    return best(down, 100_000) - best(nothing, 100_000)


def looks() -> None:
    """One look of the sample, with one topic and with topics that are all different."""
    sample = FakeNode().broker.topic_sample

    def same(times: int) -> None:
        for _ in range(times):
            sample.left = -1
            sample.take("t/1", 16, "c", 1.0)

    names = [f"t/{number}" for number in range(CLIENTS)]

    def different(times: int) -> None:
        for number in range(times):
            sample.left = -1
            sample.take(names[number], 16, "c", 1.0)

    one, many = best(same, 20_000), best(different, CLIENTS, 3)
    print(
        f"one look: {one * 1e6:.2f} us, {many * 1e6:.2f} with {CLIENTS:,} topics; {SAMPLES} a second: "
        f"{SAMPLES * one * 100:.2f} and {SAMPLES * many * 100:.2f} % of a core"
    )


def s8() -> None:
    """What a connection remembers, against its whole life."""
    node = FakeNode()
    channel = node.connect("c").connection.channel

    def remember(times: int) -> None:
        for _ in range(times):
            channel.swept_received = channel.swept_sent = channel.swept_bytes_in = channel.swept_bytes_out = 0

    def live(times: int) -> None:
        for number in range(times):
            client = node.connect(f"c{number}", version=4)
            client.transport.close()
            node.run()

    numbers, life = best(remember, 100_000), best(live, 300)
    print(f"S8: {numbers * 1e9:.0f} ns of {life * 1e6:.0f} us of a connection: {numbers / life * 100:.2f} %")


def swept() -> None:
    """A whole sweep, by its ticks of 100 ms, of which each looks at ``PART`` clients."""
    node = FakeNode()
    clients = add_clients(node.server, CLIENTS)
    now = sweep(node.server, node.clock.time + 10, CLIENTS) + 10
    for number, client in enumerate(clients):
        client.move(number * 7919 % 10_007)
    parts = []
    for _ in range(CLIENTS // PART):
        now += 0.1
        begun = clock()
        node.server.client_sweep.tick(now)
        parts.append(clock() - begun)
    mean = statistics.mean(parts)
    print(
        f"sweep over {CLIENTS:,} clients that all send: {mean * 1e3:.3f} ms for {PART:,} in each 100 ms "
        f"(the longest {max(parts) * 1e3:.2f}): {mean * 1000:.2f} % of a core"
    )


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    sampled("S1", s1, rounds)
    sampled("S6b", s6b, rounds)
    looks()
    s8()
    swept()
    return 0


if __name__ == "__main__":
    sys.exit(main())
