"""One node per module, and for each test a ``Clients`` of every version and transport it does not rule out.

A module's ``SETTINGS`` (arguments of ``start_node``) shape its node. Modules carry
``pytestmark = pytest.mark.asyncio(loop_scope="module")``.

With ``TAIPAN_TEST_CLUSTER=1`` a node is a cluster of two, and every second client goes to the other one;
``across_nodes`` says which tests that is not for.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.clients import Clients, StartClients
from tests.support.cluster_nodes import start_spread_node
from tests.support.node import ExternalNode, Node, external_node, start_node

from .across_nodes import why_not

ACROSS_NODES = os.environ.get("TAIPAN_TEST_CLUSTER") == "1"
start = start_spread_node if ACROSS_NODES else start_node

if os.environ.get("TAIPAN_TEST_LOOP") == "uvloop":  # as the node itself runs where uvloop is installed

    @pytest.hookimpl(optionalhook=True)
    def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
        import uvloop

        return {"uvloop": uvloop.new_event_loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What makes no sense across nodes is skipped there, with the reason."""
    for item in items:
        if not ACROSS_NODES or Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(pytest.mark.cluster)
        reason = why_not(item)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(params=[4, 5], ids=["v4", "v5"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=["tcp", "ws"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(request: pytest.FixtureRequest) -> AsyncIterator[Node | ExternalNode]:
    settings: dict[str, Any] = getattr(request.module, "SETTINGS", {})
    node: Node | ExternalNode | None = external_node()
    if node is None:
        node = await start(**settings)
    elif settings:
        pytest.skip("needs settings of its own")
    yield node
    await node.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def clients(node: Node | ExternalNode, version: int, transport: str) -> AsyncIterator[Clients]:
    clients = Clients(node, version, transport)
    yield clients
    await clients.close()


@pytest_asyncio.fixture(loop_scope="module")
async def clients_of(version: int, transport: str) -> AsyncIterator[StartClients]:
    """Starts a node with settings of the test's own (arguments of ``start_node``) and gives its ``Clients``."""
    if external_node() is not None:
        pytest.skip("needs settings of its own")
    made: list[Clients] = []

    async def start_clients(**settings: Any) -> Clients:
        made.append(Clients(await start(**settings), version, transport))
        return made[-1]

    yield start_clients
    for clients in made:
        await clients.close()
        await clients.node.stop()
