"""CoAP's message layer: messages, blocks and observations, also over a network that loses, repeats and reorders."""

import itertools
from typing import Any

import pytest

from taipan.broker.gateways.coap import codec
from taipan.broker.gateways.coap.codec import ACK, CON, CONTENT, GET, NON, POST, PUT, RST, URI_PATH
from taipan.broker.gateways.coap.exchange import CoapAnswer, CoapRequest, QueueFull
from taipan.broker.gateways.coap.observe import Observation, Observations
from taipan.broker.gateways.coap.sending import MAX_WRONG
from taipan.broker.gateways.coap.shared import EXCHANGE_BYTES, CoapExchange, Exchanges
from tests.gateways.coap_net import Network, Side, pair

BAD = {"loss": 20, "repeat": 20, "late": 20}
TOKEN = b"\x01\x02"


def ask(side: Side, code: int = GET, **options: Any) -> list[CoapAnswer | None]:
    """Send a request; the list that is returned gets its answer."""
    answers: list[CoapAnswer | None] = []
    side.endpoint.request(code, path=("a", "b"), answered=answers.append, **options)
    return answers


def raw(device: Side, kind: int, code: int, mid: int, options: codec.Options = [], payload: bytes = b"") -> bytes:  # noqa: B006
    """Let the device send a message; return what the node has answered at once."""
    network = device.network
    before = len(network.datagrams)
    node = device.other
    assert node is not None
    node.receive(codec.encode(kind, code, mid, TOKEN if code else b"", options, payload))
    sent = [data for name, data in network.datagrams[before:] if name == node.name]
    return sent[0] if sent else b""


def test_a_request_and_its_piggybacked_answer() -> None:
    network = Network()
    device, node = pair(network)
    answers = ask(device, PUT, payload=b"21", query=("c=x",), content_format=0)
    network.run(1)
    [request] = node.served
    assert (request.code, request.path, request.query, request.payload) == (PUT, ("a", "b"), ("c=x",), b"21")
    assert request.argument("c") == "x" and request.argument("u") is None and request.content_format == 0
    [answer] = answers
    assert answer is not None and (answer.code, answer.payload) == (CONTENT, b"21")
    assert len(network.datagrams) == 2 and codec.decode(network.datagrams[1][1]).type == ACK


def test_a_later_answer_is_a_message_of_its_own() -> None:
    network = Network()
    device, node = pair(network)
    node.answer = lambda request: None
    answers = ask(device)
    network.run(1.5)
    [(_, _), (_, acknowledgement)] = network.datagrams
    assert acknowledgement == codec.empty(ACK, codec.decode(network.datagrams[0][1]).mid)
    node.served[0].answer(CONTENT, b"late")
    node.served[0].answer(CONTENT, b"twice")
    network.run(1)
    assert [each.payload for each in answers if each] == [b"late"]
    assert [codec.decode(data).type for _, data in network.datagrams[2:]] == [CON, ACK]


def test_a_request_that_is_never_answered() -> None:
    network = Network()
    device, node = pair(network)
    node.answer = lambda request: None
    answers = ask(device)
    network.run(65)
    assert answers == [None] and not device.lost
    node.served[0].answer(CONTENT, b"too late")
    network.run(1)
    assert codec.decode(network.datagrams[-1][1]).type == RST  # no request waits for it any more


def test_a_repetition_before_it_is_due() -> None:
    """It comes once, only after the message has been repeated, and the message then has all its repetitions again."""
    network = Network(loss=100)
    device, _ = pair(network, ack_random_factor=1)
    answers = ask(device)
    assert not device.endpoint.repeat_now()  # the acknowledgement may be on its way
    network.run(2 + 4 + 1)
    assert len(network.datagrams) == 3
    assert device.endpoint.repeat_now()
    assert len(network.datagrams) == 4 and len({data for _, data in network.datagrams}) == 1
    network.run(2.1)
    assert len(network.datagrams) == 5
    assert not device.endpoint.repeat_now()
    network.run(100)
    assert answers == [None] and len(network.datagrams) == 3 + 5
    assert not device.endpoint.repeat_now()


def test_a_ping_is_repeated_before_it_is_due() -> None:
    """What waits for the proof of an address follows at once."""
    network = Network(loss=100)
    _, node = pair(network, room=40, ack_random_factor=1)
    ask(node, PUT, payload=b"x" * 30)
    network.run(0.6)
    network.rates = 0, 0, 0
    assert node.endpoint.repeat_now()
    network.run(0.2)
    assert [codec.decode(data).code for _, data in network.datagrams[:2]] == [0, 0]
    assert codec.decode(network.datagrams[-2][1]).code == PUT


def test_repetitions_have_a_back_off_and_an_end() -> None:
    network = Network(loss=100)
    device, _ = pair(network)
    answers = ask(device)
    times = []
    while not device.lost and network.time < 1200:
        before = len(network.datagrams)
        network.run(0.1)
        times += [network.time] * (len(network.datagrams) - before)
    assert answers == [None] and device.lost == 1 and "no_answer" in device.dropped
    assert len({data for _, data in network.datagrams}) == 1 and len(network.datagrams) == 5
    gaps = [later - earlier for earlier, later in zip([1000.0, *times[:-1]], times, strict=True)]
    assert 1.9 <= gaps[0] <= 3.2 and all(1.8 < b / a < 2.2 for a, b in itertools.pairwise(gaps))


@pytest.mark.parametrize("kind", [CON, NON])
def test_a_repetition_is_not_carried_out_again(kind: int) -> None:
    network = Network()
    device, node = pair(network)
    first = raw(device, kind, PUT, 7, [(URI_PATH, b"a")], b"1")
    again = raw(device, kind, PUT, 7, [(URI_PATH, b"a")], b"1")
    assert len(node.served) == 1 and first and again == (first if kind == CON else b"")
    raw(device, kind, PUT, 7, [(URI_PATH, b"a")], b"2")  # another request: the client has used up its message IDs
    network.run(250)
    raw(device, kind, PUT, 7, [(URI_PATH, b"a")], b"2")  # EXCHANGE_LIFETIME is over
    assert [each.payload for each in node.served] == [b"1", b"2", b"2"]


def test_a_refused_request_is_judged_again() -> None:
    device, node = pair(Network())
    node.answer = lambda request: request.answer(codec.UNAUTHORIZED)
    raw(device, CON, PUT, 7)
    raw(device, CON, PUT, 7)
    assert len(node.served) == 2 and len(node.shared) == 0


def test_requests_are_remembered_within_limits() -> None:
    table = Exchanges()
    found = [CoapExchange(("h", port), mid, 1, 100.0 + port) for port in range(3) for mid in range(3)]
    assert [table.add(each, 1.0, 7, 2) for each in found] == [False] * 9 and len(table) == 6
    assert table.find(("h", 0), 0, 1, 1.0) is None and table.find(("h", 0), 2, 1, 1.0) is found[2]
    assert table.add(CoapExchange(("h", 9), 0, 1, 200.0), 1.0, 6, 2)
    assert table.find(("h", 0), 1, 1, 1.0) is None
    table.add(CoapExchange(("h", 10), 0, 1, 200.0), 101.5, 6, 2)  # those of 0 and 1 have expired
    assert len(table) == 4
    for each in found:
        table.forget(each)
    assert len(table) == 2


def test_answers_are_remembered_within_limits() -> None:
    """Of large answers, fewer are kept: a client that fetches them cannot fill the memory."""
    device, node = pair(Network(), max_exchanges=100, max_exchanges_per_address=10)
    node.answer = lambda request: request.answer(CONTENT, b"x" * 1000)
    for mid in range(10):
        raw(device, CON, GET, mid)
    assert len(node.shared) == 3 and node.shared.answer_bytes <= 10 * EXCHANGE_BYTES
    assert raw(device, CON, GET, 9) and len(node.served) == 10
    table = Exchanges()
    found = [CoapExchange(("h", port), 0, 1, 100.0) for port in range(5)]
    for each in found:
        table.add(each, 1.0, 5, 5)
    assert [table.keep(each, b"x" * EXCHANGE_BYTES * 2, 5, 5) for each in found] == [False, False, True, True, True]
    assert len(table) == 2 and table.answer_bytes == 4 * EXCHANGE_BYTES
    for each in found:
        table.forget(each)
    assert table.answer_bytes == 0


def test_answers_in_blocks_are_counted() -> None:
    device, node = pair(Network(), max_bodies_bytes=4096)
    node.answer = lambda request: request.answer(CONTENT, b"z" * 3000)
    found = [ask(device) for _ in range(2)]
    device.network.run(0.03)
    assert device.shared.body_bytes > 0
    device.network.run(10)
    assert [answer is not None and len(answer.payload) for [answer] in found] == [3000, 3000]
    assert device.shared.body_bytes == 0
    device.shared.body_bytes = 4000  # of other clients
    found = [ask(device)]
    device.network.run(10)
    assert found == [[None]] and "bodies_full" in device.dropped and device.shared.body_bytes == 4000
    ask(device)
    device.endpoint.end()
    assert device.shared.body_bytes == 4000


def test_a_newer_notification_while_an_older_one_is_fetched() -> None:
    network = Network()
    device, node = pair(network)
    heard: list[bytes] = []
    state = b"a" * 2500
    node.answer = lambda request: request.answer(CONTENT, state, options=[(codec.OBSERVE, b"\1")])
    device.endpoint.request(
        GET, path=("a",), observe=0, answered=lambda answer: None, notified=lambda answer: heard.append(answer.payload)
    )
    network.run(5)
    [request] = node.served
    for number, letter in enumerate((b"b", b"c"), 2):
        state = letter * 2500
        options = [(codec.OBSERVE, codec.uint_bytes(number))]
        code, options, part = node.endpoint.in_blocks(request.resource, options, state)
        device.receive(codec.encode(NON, code, 5000 + number, request.token, options, part))
    network.run(5)
    assert heard == [state] and not device.dropped


def test_a_notification_that_cannot_be_fetched_does_not_end_the_observation() -> None:
    network = Network()
    device, node = pair(network, max_body_bytes=2000)
    heard: list[bytes] = []
    node.answer = lambda request: request.answer(CONTENT, b"1", options=[(codec.OBSERVE, b"\1")])
    device.endpoint.request(
        GET, path=("a",), observe=0, answered=lambda answer: None, notified=lambda answer: heard.append(answer.payload)
    )
    network.run(5)
    token = node.served[0].token
    options = [(codec.OBSERVE, b"\2"), (codec.BLOCK2, codec.uint_bytes(8 | 6)), (codec.ETAG, b"e")]
    node.answer = lambda request: None
    device.receive(codec.encode(NON, CONTENT, 5001, token, options, b"x" * 1024))
    network.run(100)  # the next block does not come
    device.receive(codec.encode(NON, CONTENT, 5002, token, [(codec.OBSERVE, b"\3"), *options[1:]], b"x" * 10))
    network.run(5)
    device.receive(codec.encode(NON, CONTENT, 5003, token, [(codec.OBSERVE, b"\4")], b"4"))
    assert heard == [b"4"] and "transfer_failed" in device.dropped and device.shared.body_bytes == 0


def test_messages_that_are_rejected_or_ignored() -> None:
    device, node = pair(Network())
    reset = codec.empty(RST, 7)
    assert raw(device, CON, 0, 7) == reset  # a ping
    assert raw(device, NON, 0, 7) == b""
    assert raw(device, CON, CONTENT, 7) == reset  # an answer to no request
    assert raw(device, NON, CONTENT, 7) == b"" and raw(device, ACK, CONTENT, 7) == b""
    assert raw(device, RST, 0, 7) == b"" and raw(device, ACK, GET, 7) == b""
    assert raw(device, CON, 0xE1, 7) == reset  # a reserved class
    assert codec.decode(raw(device, CON, GET, 8, [(9, b"x")])).code == codec.BAD_OPTION
    assert raw(device, NON, GET, 9, [(9, b"x")]) == b""
    assert raw(device, CON, GET, 10, [(10, b"x")])  # an elective one is ignored
    assert codec.decode(raw(device, CON, GET, 11, [(35, b"coap://x")])).code == codec.NO_PROXYING
    assert len(node.served) == 1


def test_an_answer_is_not_larger_than_the_question_before_the_address_is_proved() -> None:
    network = Network()
    device, node = pair(network, room=0)
    node.answer = lambda request: request.answer(CONTENT, b"x" * 200)
    answers = ask(device)
    asked = len(network.datagrams[0][1])
    node.other = None  # nothing arrives at the forged address
    network.run(100)
    sent = sum(len(data) for name, data in network.datagrams if name == "node")
    assert sent <= asked * 5 and not node.dropped.count("amplification") and node.lost == 1  # device repeats: 5 times
    network = Network()
    device, node = pair(network, room=0)
    node.answer = lambda request: request.answer(CONTENT, b"x" * 200)
    answers = ask(device)
    network.run(3)
    [answer] = answers
    assert answer is not None and answer.payload == b"x" * 200 and node.room == -1
    kinds = [codec.decode(data).type for name, data in network.datagrams]
    assert kinds == [CON, CON, RST, ACK]  # the ping comes before the answer


def test_message_ids_cannot_be_guessed() -> None:
    network = Network()
    device, node = pair(network, room=0)
    node.answer = lambda request: request.answer(CONTENT, b"x" * 200)
    raw(device, CON, GET, 7, [(URI_PATH, b"a")])
    right = codec.decode(network.datagrams[-1][1]).mid
    for guess in range(MAX_WRONG):
        raw(device, RST, 0, right + 1 + guess & 0xFFFF)
    assert node.lost == 1 and node.room >= 0


def test_requests_wait_for_each_other() -> None:
    network = Network()
    device, node = pair(network, max_requests=3)
    answers = [ask(node) for _ in range(3)]
    assert len(network.datagrams) == 1
    with pytest.raises(QueueFull):
        ask(node)
    network.run(1)
    assert [len(each) for each in answers] == [1, 1, 1] and len(device.served) == 3


def test_the_end_answers_what_is_open() -> None:
    network = Network()
    device, node = pair(network)
    node.answer = lambda request: None
    answers = ask(device)
    network.run(0.1)
    device.endpoint.end()
    node.endpoint.end()
    node.served[0].answer(CONTENT)
    network.run(100)
    assert answers == [None] and len(network.datagrams) == 1


@pytest.mark.parametrize("size", [0, 15, 16, 1024, 1025, 3072, 40_000])
@pytest.mark.parametrize("block_size", [16, 1024])
def test_bodies_in_blocks_in_both_directions(size: int, block_size: int) -> None:
    network = Network()
    device, node = pair(network, block_size=block_size)
    body = bytes(at * 7 & 0xFF for at in range(size))
    answers = ask(device, POST, payload=body)
    network.run(3000)
    [request] = node.served
    assert request.payload == body
    [answer] = answers
    assert answer is not None and answer.payload == body
    assert max(len(data) for _, data in network.datagrams) < block_size + 80
    assert device.shared.body_bytes == 0 and node.shared.body_bytes == (size if size > block_size else 0)
    node.endpoint.end()
    assert node.shared.body_bytes == 0


def test_a_smaller_block_is_asked_for() -> None:
    network = Network()
    device, node = pair(network)
    node = Side(network, "node", block_size=64)
    device.other, node.other = node, device
    answers = ask(device, POST, payload=b"y" * 3000)
    network.run(1000)
    [answer] = answers
    assert answer is not None and answer.payload == b"y" * 3000 == node.served[0].payload


def test_bodies_have_limits() -> None:
    network = Network()
    device, node = pair(network, max_body_bytes=2000)
    answers = ask(device, POST, payload=b"y" * 3000)
    network.run(10)
    [answer] = answers
    assert answer is not None and answer.code == codec.TOO_LARGE and "body_too_large" in node.dropped
    node.answer = lambda request: request.answer(CONTENT, b"z" * 3000)
    answers = ask(device)
    network.run(10)
    assert answers == [None] and "transfer_failed" in device.dropped
    device, node = pair(Network(), max_bodies_bytes=1024, max_body_bytes=2000)
    answers = ask(device, POST, payload=b"y" * 1500)
    device.network.run(10)
    [answer] = answers
    assert answer is not None and answer.code == codec.UNAVAILABLE and "bodies_full" in node.dropped
    assert node.shared.body_bytes == 0


def test_blocks_that_do_not_fit_together() -> None:
    device, node = pair(Network())

    def put(mid: int, num: int, more: bool, payload: bytes, exponent: int = 0) -> int:
        value = codec.uint_bytes(num << 4 | more << 3 | exponent)
        return codec.decode(raw(device, CON, PUT, mid, [(codec.BLOCK1, value)], payload)).code

    assert put(1, 1, True, b"x" * 16) == codec.INCOMPLETE
    assert put(2, 0, True, b"x" * 15) == codec.BAD_REQUEST
    assert put(3, 0, True, b"x" * 16) == codec.CONTINUE
    assert put(4, 2, True, b"x" * 16) == codec.INCOMPLETE
    assert put(5, 1, False, b"x" * 17) == codec.BAD_REQUEST
    assert put(6, 0, True, b"x", 7) == codec.BAD_REQUEST
    assert put(7, 1, False, b"y") == CONTENT
    assert [each.payload for each in node.served] == [b"x" * 16 + b"y"]
    answer = codec.decode(raw(device, CON, GET, 8, [(codec.BLOCK2, codec.uint_bytes(9 << 4))]))
    assert answer.code == codec.BAD_REQUEST  # there is no such block


@pytest.mark.parametrize("seed", range(40))
def test_requests_over_a_bad_network(seed: int) -> None:
    network = Network(seed, **BAD)
    device, node = pair(network)
    node.answer = lambda request: (
        request.answer(CONTENT, request.payload)
        if network.random.random() < 0.5
        else void(network.after(network.random.uniform(0, 4), lambda: request.answer(CONTENT, request.payload)))
    )
    bodies = [b"%d" % number * (1 if number % 5 else 900) for number in range(20)]
    answers = [ask(device, PUT, payload=each) for each in bodies]
    network.run(20_000)
    served = [each.payload for each in node.served]
    assert len(set(served)) == len(served), "carried out twice"
    done = [(body, each[0]) for body, each in zip(bodies, answers, strict=True) if each[0] is not None]
    assert all(body == answer.payload and body in served for body, answer in done)
    assert len(done) >= 5  # a message is lost five times in a row once in 40 with its answer; a body is many messages


def void(_: object) -> None:
    pass


class Observed:
    """A node's Observations beside its CoapEndpoint."""

    def __init__(self, node: Side, max_bytes: int = 65_536) -> None:
        self.node = node
        self.rejected: list[Observation] = []
        self.of = Observations(lambda: node.endpoint, max_bytes, lambda: node.drop("waiting", ""), self._reject)
        node.endpoint._sender._more = self.of.more
        node.answer = self._register

    def _reject(self, observation: Observation) -> None:
        self.rejected.append(observation)
        self.of.remove(observation)

    def _register(self, request: CoapRequest) -> None:
        if request.observe == 0:
            found = self.of.add(request, "t", 42)
            assert found is not None
            request.answer(CONTENT, b"first", options=[(codec.OBSERVE, found.next_sequence())])
        else:
            request.answer(CONTENT, b"")

    def tell(self, payload: bytes, topic: str = "t") -> None:
        for each in self.of:
            self.of.notify(each, topic, payload, 42)


def test_observations_in_both_directions() -> None:
    network = Network()
    device, node = pair(network)
    observed = Observed(node)
    seen: list[CoapAnswer] = []
    answers: list[CoapAnswer | None] = []
    token = device.endpoint.request(GET, path=("t",), observe=0, answered=answers.append, notified=seen.append)
    network.run(1)
    assert answers[0] is not None and answers[0].payload == b"first"
    for number in range(3):
        observed.tell(b"%d" % number)
        network.run(1)
    assert [each.payload for each in seen] == [b"0", b"1", b"2"] and seen[0].content_format == 42
    assert [each.observe for each in seen] == [2, 3, 4]
    observed.tell(b"large" * 1000)
    network.run(5)
    assert seen[-1].payload == b"large" * 1000
    device.endpoint.forget(token)
    observed.tell(b"unwanted")
    network.run(1)
    assert len(seen) == 4 and len(observed.rejected) == 1 and not len(observed.of)


def test_a_newer_state_takes_the_place_of_an_older_one() -> None:
    network = Network()
    device, node = pair(network)
    observed = Observed(node, max_bytes=1000)
    seen: list[CoapAnswer] = []
    device.endpoint.request(GET, path=("t",), observe=0, answered=void, notified=seen.append)
    network.run(1)
    node.other = None
    observed.tell(b"0")  # lost
    for number in range(1, 10):
        observed.tell(b"%d" % number)
    node.other = device
    network.run(4)
    assert [each.payload for each in seen] == [b"9"] and not node.dropped
    for number in range(10):
        observed.tell(b"x" * 100, f"topic{number}")
    assert node.dropped.count("waiting") == 6


def test_stale_notifications_are_dropped() -> None:
    network = Network()
    device, node = pair(network)
    Observed(node)
    seen: list[CoapAnswer] = []
    token = device.endpoint.request(GET, path=("t",), observe=0, answered=void, notified=seen.append)
    network.run(1)

    def notify(mid: int, sequence: int) -> None:
        options = [(codec.OBSERVE, codec.uint_bytes(sequence))]
        device.receive(codec.encode(NON, CONTENT, mid, token, options, b"%d" % sequence))

    for mid, sequence in enumerate((5, 4, 5, 6, 0xFFFFF0, 7 + (1 << 22))):
        notify(mid, sequence)
    assert [each.payload for each in seen] == [b"5", b"6", b"%d" % (7 + (1 << 22))]
    network.run(130)
    notify(99, 3)
    assert seen[-1].payload == b"3"


@pytest.mark.parametrize("seed", range(40))
def test_an_observer_has_the_last_state_over_a_bad_network(seed: int) -> None:
    network = Network(seed, **BAD)
    device, node = pair(network)
    observed = Observed(node)
    seen: list[CoapAnswer] = []
    device.endpoint.request(GET, path=("t",), observe=0, answered=void, notified=seen.append)
    network.run(60)
    for number in range(100):
        observed.tell(b"%d" % number)
        network.run(network.random.uniform(0, 2))
    network.run(100)
    numbers = [int(each.payload) for each in seen]
    assert numbers == sorted(set(numbers)), "repeated or out of order"
    if not node.lost and not device.lost:
        assert numbers[-1] == 99
