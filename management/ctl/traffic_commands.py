"""The commands listeners, retainer, delayed, topic-metrics and slow-subs: where messages arrive, which are retained or
delayed, and their metrics."""

from collections.abc import Iterator
from typing import Final

from ..operations.delayed import DelayedQuery, DelayedRecord
from ..operations.listeners import ListenerRecord
from ..operations.listing import EVERYTHING
from ..operations.retained import RetainedQuery
from ..operations.topic_metrics import TopicMetricsRecord
from .command import OK, CommandCall, CommandResult, Commands, finding, key_line, not_found, told

commands = Commands()

_LISTENER_WIDTH: Final = 16
_METRIC_WIDTH: Final = 30


@commands.add("listeners", "List the listeners")
def list_listeners(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.listeners.records(), _listener_lines)


@commands.add("listeners restart <Identifier>", "Close and reopen a listener's socket; clients stay connected")
async def restart_listener(call: CommandCall) -> CommandResult:
    name = call["Identifier"]
    with finding():
        await call.operations.listeners.restart(name)
    return CommandResult(None, f"Restarted {name} listener successfully.")


@commands.add("listeners stop <Identifier>", "Close a listener's socket until it is restarted; clients stay connected")
async def stop_listener(call: CommandCall) -> CommandResult:
    return await _stop(call, call["Identifier"])


@commands.add("listeners stop <Protocol> <Port>", "The same, given as mqtt:tcp and 1883, or 127.0.0.1:1883")
async def stop_listener_on(call: CommandCall) -> CommandResult:
    protocol, port = call["Protocol"], call["Port"]
    for row in call.operations.listeners.records():
        same = row.protocol == protocol or row.protocol.startswith(f"{protocol}:")
        if same and port in (row.listen_on, row.listen_on.rpartition(":")[2]):
            return await _stop(call, row.identifier)
    raise not_found(f"listener {protocol} on {port}")


async def _stop(call: CommandCall, name: str) -> CommandResult:
    where = next((row.listen_on for row in call.operations.listeners.records() if row.identifier == name), "")
    with finding():
        await call.operations.listeners.stop(name)
    return CommandResult(None, f"Stop {name} listener on {where} successfully.")


def _listener_lines(rows: list[ListenerRecord]) -> Iterator[str]:
    for row in rows:
        facts = {
            "listen_on": row.listen_on,
            "acceptors": row.acceptors,
            "max_conns": row.max_conns,
            "current_conn": row.current_conns,
            "shutdown_count": _counts(row.shutdown_count),
        }
        yield row.identifier
        for key, value in facts.items():
            yield "  " + key_line(key, value, _LISTENER_WIDTH)


def _counts(counts: list[dict[str, int]] | dict[str, int]) -> str:
    """Return ``[{normal,1}]``, for both forms of the record."""
    tables = counts if isinstance(counts, list) else [counts]
    return "[" + ",".join(f"{{{reason},{count}}}" for table in tables for reason, count in table.items()) + "]"


@commands.add("retainer info", "Show the number of retained messages")
def show_retained_count(call: CommandCall) -> CommandResult:
    count = call.operations.monitoring.stats()["retained.count"]
    return CommandResult({"count": count}, lambda data: f"retained/total: {data['count']}")


@commands.add("retainer topics", "List the topics with a retained message")
def list_retained_topics(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.retained.search(RetainedQuery(), EVERYTHING), lambda row: str(row.topic))


@commands.add("retainer clean [<Topic>]", "Delete the retained messages that match a topic filter (default: #)")
async def clean_retained(call: CommandCall) -> CommandResult:
    count = await call.operations.retained.delete(call.get("Topic") or "#")
    return CommandResult({"count": count}, lambda data: f"Cleaned {data['count']} retained messages")


@commands.add("delayed list [--topic <Filter>] [--count <N>]", "List the delayed messages of all nodes, the next first")
async def list_delayed(call: CommandCall) -> CommandResult:
    limit = 50 if call.get("N") is None else call.integer("N", 1, 1_000)
    found = await call.operations.delayed.listing(DelayedQuery(match_topic=call.get("Filter"), limit=limit), limit)
    return CommandResult(found, _delayed_line)


@commands.add("delayed show <Id> [<Node>]", "Show a delayed message of this or another node, with its payload")
async def show_delayed(call: CommandCall) -> CommandResult:
    calls, node = call.operations.calls, call.get("Node")
    with finding():
        found = await calls.on(node or calls.name, call.operations.delayed.get_here, call["Id"])
    return CommandResult(found, lambda row: [_delayed_line(row), f"{row.encoding}: {row.payload}"])


@commands.add("delayed del <Id> [<Node>]", "Delete a delayed message of this or another node")
async def delete_delayed(call: CommandCall) -> CommandResult:
    calls, node = call.operations.calls, call.get("Node")
    with finding():
        _: bool = await calls.on(node or calls.name, call.operations.delayed.delete_here, call["Id"])
    return CommandResult(None, OK)


def _delayed_line(row: DelayedRecord) -> str:
    facts = f"expected_at={row.expected_at}, clientid={told(row.from_clientid)}, size={row.payload_size}"
    return f"Delayed({row.id}, topic={row.topic}, qos={row.qos}, {facts}, node={row.node})"


@commands.add("topic-metrics list", "Show the metrics of all counted topics")
async def list_topic_metrics(call: CommandCall) -> CommandResult:
    records, _ = await call.operations.topic_metrics.records()
    return CommandResult(records, _topic_lines)


@commands.add("topic-metrics show <Topic>", "Show the metrics of a topic")
async def show_topic_metrics(call: CommandCall) -> CommandResult:
    found, _ = await call.operations.topic_metrics.get(call["Topic"])
    return CommandResult(found, lambda values: [key_line(name, value, _METRIC_WIDTH) for name, value in values.items()])


@commands.add("topic-metrics add <Topic>", "Start counting the messages of a topic")
async def add_topic_metrics(call: CommandCall) -> CommandResult:
    await call.operations.topic_metrics.add(call["Topic"])
    return CommandResult(None, OK)


@commands.add("topic-metrics del <Topic>", "Stop counting the messages of a topic")
async def delete_topic_metrics(call: CommandCall) -> CommandResult:
    await call.operations.topic_metrics.remove(call["Topic"])
    return CommandResult(None, OK)


def _topic_lines(rows: list[TopicMetricsRecord]) -> Iterator[str]:
    for row in rows:
        yield row.topic
        for name, value in row.metrics.items():
            yield "  " + key_line(name, value, _METRIC_WIDTH)


@commands.add("slow-subs list", "List the slowest subscriptions")
async def list_slow_subscriptions(call: CommandCall) -> CommandResult:
    keys = ("clientid", "topic", "timespan", "last_update_time")
    found, _ = await call.operations.slow_subscriptions.listing()
    return CommandResult(
        found,
        lambda rows: [f"SlowSub({', '.join(f'{key}={getattr(row, key)}' for key in keys)})" for row in rows],
    )


@commands.add("slow-subs clean", "Clear the list of slow subscriptions")
async def clean_slow_subscriptions(call: CommandCall) -> CommandResult:
    await call.operations.slow_subscriptions.clear()
    return CommandResult(None, OK)
