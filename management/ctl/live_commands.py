"""The commands watch and top: live data until the caller stops."""

import base64
import binascii
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
from msgspec import UNSET

from ..operations.live import LiveQuery
from ..operations.live_sources import LiveEvent
from ..operations.pubsub import NamelessPublishRequest
from ..operations.refusal import RPC_ERROR, Refusal
from ..operations.top import SORTS, Top
from .command import OK, AnswerEnded, CommandCall, CommandResult, Commands, Stream, Told, told, word
from .top_lines import top_lines

commands = Commands()

_FORMS: Final = ("text", "hex", "base64", "none")
_EVERY: Final = 250
"""Milliseconds between two reads of messages."""
_MOST: Final = 10**9
_TOPICS: Final = 10
_ENDS: Final = {"node_stops": "the node is stopping", "not_allowed": "the application no longer has access"}


async def _looks(call: CommandCall, query: LiveQuery) -> AsyncGenerator[list[LiveEvent], None]:
    """Yield updates until the caller stops. Raises Refusal, and AnswerEnded if the node stops or the caller no
    longer has access."""
    stream = call.operations.live.open(query)
    try:
        stream.hello()
        why = call.ended()
        while not why:
            try:
                found = await stream.look()
            except Refusal as refusal:
                raise AnswerEnded(refusal.code, refusal.message) from None
            yield found
            why = await stream.wait(stream.every) or call.ended()
        raise AnswerEnded(RPC_ERROR, _ENDS.get(why, why))
    finally:
        stream.close()


def _count(call: CommandCall) -> int:
    return _MOST if call.get("N") is None else call.integer("N", 1, _MOST)


@commands.add(
    "watch <Filter> [--qos <QoS>] [--payload <Form>] [--count <N>]",
    "Print messages as they arrive; payload as text, hex, base64 or none",
)
def watch(call: CommandCall) -> CommandResult:
    form = "text" if call.get("Form") is None else call.choice("Form", *_FORMS)
    qos = None if call.get("QoS") is None else call.integer("QoS", 0, 2)
    return CommandResult(None, "", stream=_messages(call, form, qos, _count(call)))


@commands.add(
    "publish <Topic> <Payload> [--qos <QoS>] [--retain] [--clientid <As>]",
    "Publish a message, as the node or as a client",
)
async def publish(call: CommandCall) -> CommandResult:
    qos = 0 if call.get("QoS") is None else call.integer("QoS", 0, 2)
    request = NamelessPublishRequest(
        client_id=call.get("As") or UNSET,
        topic=call["Topic"],
        payload=call["Payload"],
        qos=qos,
        retain=call.get("--retain") is not None,
    )
    await call.operations.pubsub.publish(request)
    return CommandResult(None, OK)


async def _messages(call: CommandCall, form: str, qos: int | None, count: int) -> Stream:
    looks = _looks(call, LiveQuery(messages=call["Filter"], every=_EVERY))
    try:
        async for events in looks:
            found: list[Told] = []
            for _, data in events:
                assert isinstance(data, dict)
                for raw in data["messages"]:
                    message = msgspec.json.decode(raw)
                    if qos in (None, message["qos"]) and count:
                        count -= 1
                        found.append(_told(message, form))
                if data["left_out"]:
                    text = f"{data['left_out']} messages are left out: there are more than can be shown"
                    found.append(Told({"left_out": data["left_out"]}, text, aside=True))
            yield found
            if not count:
                return
    finally:
        await looks.aclose()


def _told(message: dict[str, Any], form: str) -> Told:
    """``payload`` of the message is text, or base64 if it is not UTF-8."""
    payload = message.pop("payload", None)
    encoding = message.pop("payload_encoding", "")
    shown = ""
    if form != "none" and isinstance(payload, str):
        data = base64.b64decode(payload) if encoding else payload.encode()
        if form == "hex":
            payload, encoding = binascii.hexlify(data).decode("ascii"), "hex"
        elif form == "base64":
            payload, encoding = base64.b64encode(data).decode("ascii"), "base64"
        shown = payload if form != "text" or not encoding else "0x" + binascii.hexlify(data).decode("ascii")
        message["payload"] = payload
        if encoding:
            message["payload_encoding"] = encoding
    facts = {
        "qos": message["qos"],
        "retain": word(message["flags"]["retain"]),
        "clientid": told(message.get("clientid")),
        "at": message["publish_received_at"],
    }
    if "payload_cut" in message:
        facts["size"] = message["payload_cut"]
    if form != "none":
        facts["payload"] = shown
    return Told(message, f"Message({message['topic']}, {', '.join(f'{key}={value}' for key, value in facts.items())})")


@commands.add(
    "top [--interval <S>] [--count <N>] [--sort <Key>] [--below <Prefix>]",
    "Show the busiest clients and topics, updated continuously",
)
def show_top(call: CommandCall) -> CommandResult:
    sort = "messages" if call.get("Key") is None else call.choice("Key", *SORTS)
    seconds = 2 if call.get("S") is None else call.integer("S", 1, 10)
    top = Top(call.operations.server, call.operations.clients, sort)
    query = LiveQuery(figures=True, topics=call.get("Prefix") or "", every=seconds * 1000)
    return CommandResult(None, "", stream=_tables(call, top, query, _count(call)))


async def _tables(call: CommandCall, top: Top, query: LiveQuery, count: int) -> Stream:
    looks = _looks(call, query)
    first = True
    try:
        async for events in looks:
            clients = await top.look()
            if first:  # there is no rate yet
                first = False
                yield []
                continue
            data = dict(events)
            topics: Any = data["topics"]
            look = {
                "node": call.operations.nodes.name,
                "at": round(call.operations.server.clock.wall() * 1000),
                "figures": data.get("figures"),
                "clients": clients.clients,
                "rows": msgspec.to_builtins(clients.rows),
                "topics": [
                    {"topic": row.topic, "rate": row.rate, "messages": row.messages, "deeper": row.deeper}
                    for row in topics.rows[:_TOPICS]
                ],
            }
            yield [Told(look, [*top_lines(look), ""])]
            count -= 1
            if not count:
                return
    finally:
        await looks.aclose()
