"""File descriptors: clients leave some for the node itself, and wait for those that are theirs."""

import asyncio
import resource
from contextlib import AsyncExitStack

import pytest

from taipan.broker.transport.descriptors import UNLIMITED, Descriptors, descriptors
from tests.broker.transport.echo import dial, listening, on_every_transport


@pytest.mark.parametrize(
    "limit, for_clients, for_operators",
    [(1_048_576, 1_048_000, 1_048_512), (4096, 3520, 4032), (1024, 832, 960), (256, 192, 224), (64, 48, 56)],
)
def test_shares(limit: int, for_clients: int, for_operators: int) -> None:
    assert descriptors(limit) == (limit, for_clients, for_operators)


def test_of_this_process() -> None:
    assert descriptors().limit in (resource.getrlimit(resource.RLIMIT_NOFILE)[0], UNLIMITED.limit)
    assert descriptors(resource.RLIM_INFINITY) == UNLIMITED


@on_every_transport
async def test_clients_wait_while_only_the_nodes_own_are_left() -> None:
    async with listening(descriptors=Descriptors(4096, 4096, 4096)) as listener, AsyncExitStack() as stack:
        one = await stack.enter_async_context(dial(listener.port))
        one[1].write(b"hello")
        assert await one[0].readexactly(5) == b"hello"
        # No number beyond that one's is a client's: not that of the next, which is higher.
        number = listener.echoes[0].transport.get_extra_info("socket").fileno()
        listener.acceptor.descriptors = Descriptors(4096, number + 1, 4096)
        other = await stack.enter_async_context(dial(listener.port))
        await listener.until(lambda: listener.refused == {"no_sockets": 1})
        assert await other[0].read() == b""
        # The next one waits in the backlog, and comes in when there is room.
        patient = await stack.enter_async_context(dial(listener.port))
        patient[1].write(b"hello")
        await asyncio.sleep(0.05)
        assert (listener.refused, listener.accepted) == ({"no_sockets": 1}, 1)
        listener.acceptor.descriptors = UNLIMITED
        assert await patient[0].readexactly(5) == b"hello"
        assert listener.refused == {"no_sockets": 1}
