"""RedisCluster: the slot of a key decides which node executes a command."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...delivery.buffer import DELIVERED, DeliveryOutcome
from ...delivery.buffered_row import BufferedRow
from ...network.allowed_networks import reason_of
from ...params import ParamError
from ...resources.lane_connections import PROBE, LaneConnections
from ...resources.resource import ResourceError
from ...resources.sink import SinkContext
from .redis_sink import PORT, Address, NumberedCommand, RedisSink, addresses, executed, numbered, wait

if TYPE_CHECKING:
    from .connection import RedisConnection

_MOVES: Final = 3
"""How often the rows of a ``write`` follow their slots to other nodes."""
_COMMANDS: Final = 1000
"""Commands of which is remembered where their key is."""


_ASK: Final = 0
"""The key is not always in the same place: the cluster is asked with COMMAND GETKEYS."""

Groups = dict[int, list[NumberedCommand]]
"""Commands by slot."""


class SlotRange(NamedTuple):
    """The first and the last slot of a range, and its master."""

    first: int
    last: int
    master: Address


class RedisCluster(RedisSink):
    """Several masters. The commands of one slot are a transaction."""

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        self._seeds = addresses(context.config["servers"], PORT)
        if context.config["database"] != 0:
            raise ParamError("database", "a cluster has only the database 0")
        super().__init__(context)
        self._ranges: list[SlotRange] = []
        self._nodes: dict[Address, LaneConnections[RedisConnection]] = {}
        self._key_positions: dict[bytes, int] = {}
        self._asking = asyncio.Lock()

    async def test(self) -> None:
        async with asyncio.timeout(self.request_timeout):
            await self._learn_slots()
            (info,) = await self._ask([[b"CLUSTER", b"INFO"]])
        if not isinstance(info, bytes) or b"cluster_state:ok" not in info:
            raise OSError("the cluster is down: cluster_state is not ok")

    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
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
        by_master: dict[Address, Groups] = {}
        for slot, commands in groups.items():
            master = next((each.master for each in ranges if each.first <= slot <= each.last), None)
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
        from .connection import moved

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

    def _node(self, address: Address) -> LaneConnections[RedisConnection]:
        found = self._nodes.get(address)
        if found is None:
            found = self._nodes[address] = LaneConnections(lambda: self.open(address), self.connect_timeout, True)
        return found

    async def _by_slot(self, commands: list[NumberedCommand]) -> Groups:
        """Return the commands by the slots of their first keys. One without a key may be executed by any node."""
        from redis.crc import key_slot

        names = {words[0].upper() for _, words in commands} - self._key_positions.keys()
        if names:
            await self._learn_commands(list(names))
        keys: dict[int, bytes] = {}
        asked: list[NumberedCommand] = []
        for at, words in commands:
            position = self._key_positions[words[0].upper()]
            if position == _ASK:
                asked.append((at, words))
            elif position < len(words):
                keys[at] = words[position]
        if asked:
            answers = await self._ask([[b"COMMAND", b"GETKEYS", *words] for _, words in asked])
            for (at, _), answer in zip(asked, answers, strict=True):
                if isinstance(answer, list) and answer:
                    keys[at] = answer[0]
        groups: Groups = {}
        for at, words in commands:
            groups.setdefault(key_slot(keys[at]) if at in keys else 0, []).append((at, words))
        return groups

    async def _learn_commands(self, names: list[bytes]) -> None:
        (answer,) = await self._ask([[b"COMMAND", b"INFO", *names]])
        if not isinstance(answer, list) or len(answer) != len(names):
            raise OSError("COMMAND INFO has an answer that cannot be read")
        if len(self._key_positions) > _COMMANDS:
            self._key_positions.clear()
        for name, about in zip(names, answer, strict=True):
            fixed = isinstance(about, list) and len(about) > 3 and about[3] > 0 and b"movablekeys" not in about[2]
            self._key_positions[name] = about[3] if fixed else _ASK

    async def _learn_slots(self) -> list[SlotRange]:
        """Raises OSError or ResourceError."""
        async with self._asking:
            address, (answer,) = await self._ask_any([[b"CLUSTER", b"SLOTS"]])
            if not isinstance(answer, list):
                raise OSError(f"CLUSTER SLOTS: {answer}")
            # A node that does not know its own address gives an empty one.
            ranges = [
                SlotRange(first, last, ((master[0] or b"").decode() or address[0], master[1]))
                for first, last, master, *_ in answer
            ]
            self._ranges = ranges
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
