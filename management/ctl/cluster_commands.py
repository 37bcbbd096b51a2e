"""The command cluster: the nodes of the cluster, and the state of this node."""

from collections.abc import Awaitable

from ..operations.membership import ClusterStatus, Evacuation, Left, Replicas
from ..operations.refusal import WRONG
from ..operations.times import local_text
from .command import CommandCall, CommandResult, Commands, Failure

commands = Commands()


@commands.add("cluster status", "Show the running and the stopped nodes")
def show_status(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.membership.status(), _status_lines)


@commands.add("cluster replicas", "Show the copies of the nodes' data, and the nodes that run from a copy")
async def show_replicas(call: CommandCall) -> CommandResult:
    return CommandResult(await call.operations.membership.replicas(), _replica_lines)


def _replica_lines(replicas: Replicas) -> list[str]:
    lines = [
        f"Copy(node={each.node}, on={each.copy}, state={each.state}, behind={each.batches}, bytes={each.bytes}, "
        f"seconds={each.seconds:.0f})"
        for each in replicas.copies
    ]
    for hosted in replicas.hosted:
        since = local_text(hosted.since)
        lines.append(f"Hosted(node={hosted.node}, on={hosted.host}, since={since}, owed=[{_owed(hosted.owed)}])")
    return lines or ["No copies: see cluster.replicas."]


def _owed(owed: dict[str, int]) -> str:
    return ", ".join(f"{kind}={count}" for kind, count in owed.items())


@commands.add("cluster join <Node>", "Rejoin the cluster of this node after cluster leave")
async def join(call: CommandCall) -> CommandResult:
    node = _another(call, "it joins no other than its own cluster")
    return await _changed(call, call.operations.membership.join(node), "Join the cluster")


@commands.add("cluster leave", "Leave the cluster, across restarts, until cluster join")
async def leave(call: CommandCall) -> CommandResult:
    left = await call.operations.membership.leave()
    return CommandResult(left, _left_lines)


def _left_lines(left: Left) -> list[str]:
    lines = ["Leave the cluster successfully.", *_status_lines(left)]
    if left.sessions:
        lines.append(f"Sessions that stay on this node, for clients that connect to it: {left.sessions}.")
    return lines


@commands.add("cluster evacuation start", "Refuse clients, close connections and move sessions to other nodes")
async def start_evacuation(call: CommandCall) -> CommandResult:
    evacuation = await call.operations.membership.start_evacuation()
    return CommandResult(evacuation, _evacuation_lines)


@commands.add("cluster evacuation status", "Show what remains on an evacuated node")
def show_evacuation(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.membership.evacuation(), _evacuation_lines)


@commands.add("cluster evacuation stop", "Accept clients again; sessions that have moved stay where they are")
def stop_evacuation(call: CommandCall) -> CommandResult:
    evacuation = call.operations.membership.stop_evacuation()
    return CommandResult(evacuation, _evacuation_lines)


def _evacuation_lines(now: Evacuation) -> list[str]:
    return [
        f"Evacuating             : {'true' if now.evacuating else 'false'}",
        f"Connections            : {now.connections}",
        f"Sessions               : {now.sessions}",
        f"Messages for others    : {now.messages_for_others}",
        f"Kept for stopped nodes : {now.kept}",
        f"Delayed messages       : {now.delayed}",
        *(f"Includes node          : {node} ({_owed(owed)})" for node, owed in now.hosted.items()),
    ]


@commands.add(
    "cluster force-leave <Node> [--copies-lost]",
    "Remove a stopped node for good; its sessions end, unless a copy can take over",
)
async def force_leave(call: CommandCall) -> CommandResult:
    node = _another(call, "it removes itself by cluster leave")
    removal = call.operations.membership.force_leave(node, call.get("--copies-lost") is not None)
    return await _changed(call, removal, "Remove the node from cluster")


def _another(call: CommandCall, otherwise: str) -> str:
    node = call["Node"]
    if node == call.operations.membership.node:
        raise Failure(WRONG, f"{node} is this node: {otherwise}", f"it is this node: {otherwise}")
    return node


async def _changed(call: CommandCall, change: Awaitable[None], did: str) -> CommandResult:
    await change
    status = call.operations.membership.status()
    return CommandResult(status, lambda now: [f"{did} successfully.", *_status_lines(now)])


def _status_lines(status: ClusterStatus) -> list[str]:
    running, stopped = _list(status.running_nodes), _list(status.stopped_nodes)
    line = f"Cluster status: #{{running_nodes => {running},stopped_nodes => {stopped}}}"
    hosted = [f"Hosted: '{node}' runs on '{host}', from its copy." for node, host in status.hosted_nodes.items()]
    refused = [f"No member: {status.refused}."] if status.refused else []
    return [line, *refused, *hosted]


def _list(names: list[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"
