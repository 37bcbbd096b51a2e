"""NodeCalls: what goes over the wire between nodes, which two versions must have in common."""

import asyncio

import msgspec
import pytest

from taipan.broker.core.cluster import SUSPECT, CallFailed
from taipan.management.operations.node_calls import SUSPECT_TIMEOUT
from taipan.management.operations.refusal import RPC_ERROR, Refusal
from tests.support.api import managed_node
from tests.support.fake_cluster import fake_nodes

pytestmark = pytest.mark.asyncio

N1, N2 = "n1@host", "n2@host"

# A name that is gone, or an argument that is new without a default, is an answer that a node of the version before does
# not get.
SERVED = """
Access.explain_client(query) Access.owner_of_session(client_id,owner) AccessSources.records()
AlarmTargets.statuses_here() Apps.uses_here()
Alarms.deactivate(name) Alarms.forget()
Alarms.records(which) Audit.latest_here(query,wanted)
Backup.delete_here(name) Backup.listing_here() Backup.piece(name,offset) Backup.size(name)
Clients.acl_cache_here(client_id) Clients.clean_acl_cache_here(client_id) Clients.clean_acl_caches()
Clients.count(query) Clients.first_here(query,wanted) Clients.kick_here(client_id) Clients.lift_rates_here(client_id)
Clients.lift_routing_here(client_id) Clients.limit_rates_here(client_id,message_rate,byte_rate)
Clients.limit_routing_here(client_id,rate) Clients.lookup(client_id) Clients.piece(query,skip,limit)
Clients.records_here(client_ids)
Clients.set_keep_alive_here(client_id,interval) Configuration.certificates() Configuration.settings_here(prefix)
ConfigurationFile.change_here(changes,version,dry_run) ConfigurationFile.file_here()
DelayedMessageList.delete_here(name) DelayedMessageList.first_here(query,wanted) DelayedMessageList.get_here(name)
DeliveryChecks.explain_here(query) Explain.client_here(client_id) Explain.refused_here() Explain.topic_here(topic)
Listeners.records()
Listeners.restart(name) Listeners.stop(name) LiveAnswers.alarms() LiveAnswers.events(source,after,who)
LiveAnswers.figures() LiveAnswers.messages(source,after,who) LiveAnswers.rules(ids) LiveAnswers.topics(start,who)
LogView.lines_here(query) Lwm2m.answer_here(endpoint,query) Lwm2m.count(query) Lwm2m.piece(query,skip,limit)
Membership.copies_here() Membership.links_here()
Modules.load(name) Modules.plugins() Modules.records() Modules.unload(name) Monitoring.metrics() Monitoring.stats()
Nodes.broker() Nodes.status(memory_text) Owners.held(client_ids) PastFigures.points_here(resolution,start,end)
Prometheus.groups() Prometheus.text()
PubSub.subscribe_here(request) PubSub.subscribed_here(requests) PubSub.unsubscribe_here(request)
PubSub.unsubscribed_here(requests) Resources.start_here(resource_id) Resources.statuses(resource_ids)
Routes.count(query) Routes.lookup(topic) Routes.piece(query,skip,limit) Rules.figures(rule_ids)
Rules.keep_trace_here(rule_id,size) Rules.reset_metrics_here(rule_id) Rules.trace_here(rule_id)
SharedGroups.count(query) SharedGroups.piece(query,skip,limit) SharedMembers.count(query)
SharedMembers.piece(query,skip,limit) SlowRanking.clear_here() SlowRanking.slowest() Subscribers.count(query)
Subscribers.piece(query,skip,limit) Subscriptions.count(query) Subscriptions.piece(query,skip,limit)
TopLists.clients_here(query) TopLists.groups_here() TopLists.topics_here()
TopLists.troubles_here(query,dropped) TopicCounts.counted(topics)
Traces.log_here(name,position,size) Traces.piece(name,position) Traces.sizes()
Users.named_clients() WaitingMessages.count(query) WaitingMessages.piece(query,skip,limit)
"""


async def test_what_other_nodes_may_ask() -> None:
    async with managed_node() as node:
        operations = node.management.operations.calls._operations
        served = [f"{name}({','.join(each.schema.signature.parameters)})" for name, each in operations.items()]
    assert sorted(served) == sorted(SERVED.split())


async def test_arguments_of_another_version() -> None:
    async with fake_nodes(2) as nodes:
        handler = nodes.hub.handlers[N2]["operations.Alarms.records"]
        nodes[1].server.alarms.activate("a1", "something", {})
        for argument in ({}, {"which": "all"}, {"which": "all", "of_a_later_version": 1}):
            code, _, alarms = msgspec.msgpack.decode(await handler(N1, msgspec.msgpack.encode(argument)))
            assert (code, [each["name"] for each in alarms]) == (0, ["a1"])
        code, message, _ = msgspec.msgpack.decode(await handler(N1, msgspec.msgpack.encode({"which": "none"})))
        assert code == RPC_ERROR and "cannot be read" in message


@pytest.mark.parametrize("answer", [b"", b"\xc1", b"\x90", msgspec.msgpack.encode([0, "", {"no": "metrics"}])])
async def test_an_answer_that_cannot_be_read_is_none(answer: bytes) -> None:
    async def garbage(asking: str, argument: bytes) -> bytes:
        return answer

    async with fake_nodes(2) as nodes:
        nodes.hub.handlers[N2]["operations.Monitoring.metrics"] = garbage
        reply = await nodes.api.get("/metrics")
        assert [row["node"] for row in reply.data] == [N1] and reply.meta == {"missing_nodes": [N2]}


async def test_a_node_of_an_older_version_knows_no_such_operation() -> None:
    async with fake_nodes(2) as nodes:
        del nodes.hub.handlers[N2]["operations.Monitoring.metrics"]
        calls = nodes[0].management.operations.calls
        with pytest.raises(Refusal, match="cannot answer") as refused:
            await calls.on(N2, nodes[0].management.operations.monitoring.metrics)
        assert refused.value.code == RPC_ERROR
        assert isinstance(refused.value.__context__, CallFailed)


async def test_a_bug_is_told_without_its_details() -> None:
    async with fake_nodes(2) as nodes:
        nodes[1].management.operations.monitoring._server = None  # type: ignore[assignment]
        with pytest.raises(Refusal, match="internal error") as refused:
            await nodes[0].management.operations.calls.on(N2, nodes[0].management.operations.monitoring.metrics)
        assert "NoneType" not in refused.value.message
        (complaint,) = nodes[1]._complaints.records
        nodes[0]._complaints.records.clear()
        nodes[1]._complaints.records.clear()
        assert "Monitoring.metrics" in complaint


@pytest.mark.parametrize("path", ["/clients", "/metrics", "/nodes", "/clients/c/explain"])
async def test_a_list_does_not_wait_for_a_node_that_is_suspect(path: str) -> None:
    """The node is asked again after a second, and not by each request; until then the list says which node is missing.
    A node that answers although it is Suspect is in the list."""
    async with fake_nodes(3) as nodes:
        await nodes[0].client("c")
        nodes.hub.statuses[N2] = nodes.hub.statuses["n3@host"] = SUSPECT
        nodes.hub.paused.add(N2)
        loop = asyncio.get_running_loop()
        nodes.hub.calls.clear()
        began = loop.time()
        replies = await asyncio.gather(*(nodes.api.get(path) for _ in range(5)))
        assert [reply.status for reply in replies] == [200] * 5
        if path != "/nodes":
            assert all(reply.meta["missing_nodes"] == [N2] for reply in replies)
        # Nobody waits until the end of an ordinary question; one more trial is due after each second.
        assert len(nodes.hub.methods_asked(N2)) <= 1 + int(loop.time() - began)
        assert len(nodes.hub.methods_asked("n3@host")) >= 5
        nodes.hub.paused.clear()
        trials = nodes[0].management.operations.calls._trials
        trials[N2].asked_at -= 1.0
        reply = await nodes.api.get(path)
        assert "missing_nodes" not in reply.json.get("meta", {})


async def test_an_order_for_all_nodes_gives_one_that_is_suspect_its_time() -> None:
    async with fake_nodes(2) as nodes:
        nodes.hub.statuses[N2] = SUSPECT
        nodes.hub.paused.add(N2)
        ordering = asyncio.ensure_future(
            nodes[0].management.operations.calls.order_all(nodes[0].management.operations.alarms.forget)
        )
        await asyncio.wait([ordering], timeout=2 * SUSPECT_TIMEOUT)
        assert not ordering.done()
        ordering.cancel()
