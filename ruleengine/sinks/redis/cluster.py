"""RedisCluster: the slot of a key decides which node executes a command."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from ...delivery.buffer import DELIVERED, DeliveryOutcome
from ...delivery.buffered_row import BufferedRow
from ...network.allowed_networks import reason_of
from ...params import ParamError
from ...resources.lane_connections import PROBE, LaneConnections
from ...resources.resource import ResourceError
from ...resources.sink import SinkContext
from .redis_sink import PORT, Address, NumberedCommand, RedisSink, addresses, executed, numbered, wait

if TYPE_CHECKING:
    from taipan.broker.redis_servers.connection import Command
    from taipan.broker.redis_servers.slots import KeyPositions, SlotRange

    from .connection import RedisLaneConnection

_MOVES: Final = 3
"""Maximum number of times that the rows of a ``write`` follow their slots to other nodes."""
Groups = dict[int, list[NumberedCommand]]
"""Commands by slot."""


class RedisCluster(RedisSink):
    """Several masters. The commands of one slot are a transaction."""

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        self._seeds = addresses(context.config["servers"], PORT)
        if context.config["database"] != 0:
            raise ParamError("database", "a cluster has only the database 0")
        super().__init__(context)
        self._ranges: list[SlotRange] = []
        self._nodes: dict[Address, LaneConnections[RedisLaneConnection]] = {}
        self._key_positions: KeyPositions | None = None
        self._asking = asyncio.Lock()

    async def test(self) -> None:
        async with asyncio.timeout(self.request_timeout):
            await self._learn_slots()
            (info,) = await self._ask([[b"CLUSTER", b"INFO"]])
        if not isinstance(info, bytes) or b"cluster_state:ok" not in info:
            raise OSError("the cluster is down: cluster_state is not ok")

    async def ask(self, commands: list[Command], lane: int) -> list[Any]:
        from redis.crc import key_slot

        from taipan.broker.redis_servers.connection import moved
        from taipan.broker.redis_servers.slots import master_of

        answers: dict[int, Any] = {}
        left = list(enumerate(commands))
        for _ in range(_MOVES):
            async with asyncio.timeout(self.request_timeout):
                ranges = self._ranges or await self._learn_slots()
            by_master: dict[Address, list[NumberedCommand]] = {}
            for at, words in left:
                slot = key_slot(words[1])
                master = master_of(ranges, slot)
                if master is None:
                    self._ranges = []
                    raise OSError(f"no node has the slot {slot}")
                by_master.setdefault(master, []).append((at, words))
            for master, mine in by_master.items():
                found = await self._asked(master, [words for _, words in mine], lane)
                answers |= {at: answer for (at, _), answer in zip(mine, found, strict=True)}
            left = [(at, words) for at, words in left if isinstance(answers[at], Exception) and moved(answers[at])]
            if not left:
                break
            self._ranges = []
        return [answers[at] for at in range(len(commands))]

    async def _asked(self, master: Address, commands: list[Command], lane: int) -> list[Any]:
        node = self._node(master)
        answered = False
        try:
            async with asyncio.timeout(self.request_timeout):
                answers = await (await node.get(lane)).exchange(commands)
            answered = True
            return answers
        finally:
            if not answered:
                self._ranges = []
                node.drop(lane)

    async def execute(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        outcomes: list[DeliveryOutcome] = [DELIVERED] * len(rows)
        async with asyncio.timeout(self.request_timeout):
            groups = await self._by_slot(numbered(rows))
        for moves in range(_MOVES):
            try:
                async with asyncio.timeout(self.request_timeout):
                    ranges = self._ranges or await self._learn_slots()
            except (OSError, ResourceError):
                if not moves:
                    raise
                break
            groups = await self._write_once(ranges, groups, lane, outcomes)
            if not groups:
                break
        if not any(each.retry for each in outcomes):
            self.noticed()
        return outcomes

    async def close(self) -> None:
        for node in self._nodes.values():
            await node.close()

    async def _write_once(
        self, ranges: list[SlotRange], groups: Groups, lane: int, outcomes: list[DeliveryOutcome]
    ) -> Groups:
        """Send each group to the master of its slot, and set the outcomes. Return the groups whose slots have moved."""
        from taipan.broker.redis_servers.slots import master_of

        by_master: dict[Address, Groups] = {}
        for slot, commands in groups.items():
            master = master_of(ranges, slot)
            if master is None:
                self._ranges = []
                wait(commands, f"no node has the slot {slot}", outcomes)
            else:
                by_master.setdefault(master, {})[slot] = commands
        found = await asyncio.gather(
            *(self._write_to(master, mine, lane, outcomes) for master, mine in by_master.items())
        )
        return {slot: commands for each in found for slot, commands in each.items()}

    async def _write_to(self, master: Address, groups: Groups, lane: int, outcomes: list[DeliveryOutcome]) -> Groups:
        """Send groups to a master, and set the outcomes. Return the groups whose slots have moved."""
        from taipan.broker.redis_servers.connection import moved

        node = self._node(master)
        usable = False
        try:
            async with asyncio.timeout(self.request_timeout):
                connection = await node.get(lane)
                waiting = await executed(connection, list(groups.values()), outcomes)
            usable = True
        except (OSError, ResourceError) as error:
            self._ranges = []
            for commands in groups.values():
                wait(commands, f"{master[0]}:{master[1]}: {reason_of(error)}", outcomes)
            return {}
        finally:
            if not usable:
                node.drop(lane)
        if waiting:
            self._ranges = []
        return {
            slot: commands
            for slot, commands in groups.items()
            if any(at in waiting and moved(waiting[at]) for at, _ in commands)
        }

    def _node(self, address: Address) -> LaneConnections[RedisLaneConnection]:
        found = self._nodes.get(address)
        if found is None:
            found = self._nodes[address] = LaneConnections(lambda: self.open(address), self.connect_timeout, True)
        return found

    async def _by_slot(self, commands: list[NumberedCommand]) -> Groups:
        """Return the commands by the slots of their first keys. One without a key may be executed by any node."""
        from taipan.broker.redis_servers.slots import KeyPositions

        if self._key_positions is None:
            self._key_positions = KeyPositions()
        groups: Groups = {}
        slots = await self._key_positions.slots([words for _, words in commands], self._ask)
        for slot, each in zip(slots, commands, strict=True):
            groups.setdefault(slot, []).append(each)
        return groups

    async def _learn_slots(self) -> list[SlotRange]:
        """Ask the cluster which node has which slots. Raises OSError or ResourceError."""
        from taipan.broker.redis_servers.slots import SLOTS_COMMAND, slot_ranges

        async with self._asking:
            address, (answer,) = await self._ask_any([SLOTS_COMMAND])
            ranges = self._ranges = slot_ranges(answer, address)
            known = {each.master for each in ranges}.union(self._seeds)
            for old in [each for each in self._nodes if each not in known]:
                await self._nodes.pop(old).close()
        return ranges

    async def _ask(self, commands: list[list[bytes]]) -> list[Any]:
        async with self._asking:
            return (await self._ask_any(commands))[1]

    async def _ask_any(self, commands: list[list[bytes]]) -> tuple[Address, list[Any]]:
        """Return the first node that answers, and its answers. Raises OSError or ResourceError."""
        refusal: Exception | None = None
        for address in dict.fromkeys([*self._seeds, *(each.master for each in self._ranges)]):
            node = self._node(address)
            answered = False
            try:
                async with asyncio.timeout(self.connect_timeout):
                    answers = await (await node.get(PROBE)).exchange(commands)
                answered = True
                return address, answers
            except (OSError, ResourceError) as error:
                refusal = refusal or error
            finally:
                if not answered:
                    node.drop(PROBE)
        raise refusal or OSError("the cluster has no node")
