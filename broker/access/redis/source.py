"""RedisSource: asks Redis or Valkey: one server, the master that sentinels name, or a cluster."""

from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, Final

from ...config import RuleSettings
from ...loop.answer_limit import answer_within
from ...redis_servers.connection import Address, RedisConnection, RedisLogin, in_one_line
from ...redis_servers.sentinel import to_master
from ...setting_rules import Fault
from ..acl import AclRule
from ..database import DatabaseSource, Queries, StoredPassword, Values, as_bytes, as_text, hash_of_columns, new_rule
from ..database_checks import common_faults, tls_of
from ..password_hash import PasswordVerifier
from ..query_hash import HashFormat
from ..remote import SourceFailed
from ..remote_status import NO_CONNECTION
from ..source import SourceContext
from .command import RedisCommand
from .declaration import RedisAccessSettings, addresses_of
from .servers import ClusterServers, RedisServers, SingleServer

_WORDS: Final = ("auth_cmd", "super_cmd", "acl_cmd")


def _asked(settings: RedisAccessSettings) -> dict[str, str]:
    return {"auth_cmd": settings.auth_cmd, "super_cmd": settings.super_cmd, "acl_cmd": settings.acl_cmd}


def faults(settings: RedisAccessSettings) -> Iterator[Fault]:
    """Yield the faults in combinations of keys, and those of the files."""
    yield from common_faults(settings, _asked(settings))
    if settings.type == "single" and len(addresses_of(settings)) > 1:
        yield Fault(("server",), 'names several servers: set type = "sentinel" or "cluster"')
    if settings.type == "sentinel" and not settings.sentinel:
        yield Fault(("sentinel",), 'needed with type = "sentinel": the name of the master')
    if settings.type != "sentinel" and settings.sentinel:
        yield Fault(("sentinel",), f'not used with type = "{settings.type}": set type = "sentinel", or remove it')
    if settings.type == "cluster" and settings.database != 0:
        yield Fault(("database",), "a cluster has only the database 0")


class RedisSource(DatabaseSource):
    """Belongs to one event loop."""

    setting = "access.redis.acl_cmd"
    title = "Redis"

    def __init__(self, settings: RedisAccessSettings, context: SourceContext) -> None:
        """Raises ValueError for a file that cannot be used."""
        self._commands = {word: RedisCommand(text) for word, text in _asked(settings).items() if text.strip()}
        asked = [self._commands[word].letters if word in self._commands else None for word in _WORDS]
        super().__init__("redis", settings, context, Queries(_WORDS, *asked))
        self._settings = settings
        self._tls = tls_of(settings)
        self._form = HashFormat(settings.password_hash)
        self._servers = self._servers_of(settings)

    async def connect(self) -> None:
        """Open the first connection, and wait for an answer from it."""
        await self._servers.connect()

    async def find_password(self, values: Values) -> StoredPassword | None:
        answer = await self._answer("auth_cmd", values)
        columns = answer if isinstance(answer, list) else [answer]
        if not 1 <= len(columns) <= 2:
            raise SourceFailed("bad_row", detail=f"{len(columns)} values, expected password, or password and salt")
        if columns[0] is None:
            return None
        return StoredPassword(as_bytes(columns[0]), as_bytes(columns[1]) if len(columns) == 2 else None)

    def verifier(self, row: StoredPassword, password: bytes, owner: str) -> PasswordVerifier | None:
        return hash_of_columns(self._form, row, password, owner)

    async def find_superuser(self, values: Values) -> bool:
        answer = await self._answer("super_cmd", values)
        first = answer[0] if isinstance(answer, list) and answer else answer
        return not isinstance(first, list | dict) and as_text(first) == "1"

    async def find_rules(self, values: Values) -> list[AclRule]:
        """Return the rules of the client's list of topics. A client with such a list may use no other topics."""
        if not self._commands["acl_cmd"].letters <= values.keys():
            return []
        answer = await self._answer("acl_cmd", values)
        if isinstance(answer, list):
            if len(answer) % 2:
                raise ValueError("expected pairs of a topic and 1, 2 or 3")
            pairs = list(zip(answer[::2], answer[1::2], strict=True))
        elif isinstance(answer, Mapping):
            pairs = list(answer.items())
        elif answer is None:
            pairs = []
        else:
            raise ValueError("expected pairs of a topic and 1, 2 or 3")
        rules = [new_rule(True, access, as_text(topic)) for topic, access in pairs]
        return [*rules, _NOTHING_ELSE] if rules else []

    async def _answer(self, word: str, values: Values) -> Any:
        return await self._servers.ask([each.encode() for each in self._commands[word].words(values)])

    # ----------------------------------------------------------- connections

    def _servers_of(self, settings: RedisAccessSettings) -> RedisServers:
        if settings.type == "cluster":
            return ClusterServers(addresses_of(settings), self._to_server)
        if settings.type == "sentinel":
            return SingleServer(self._to_master)
        (address,) = addresses_of(settings)
        return SingleServer(lambda: self._to_server(address))

    async def _to_server(self, address: Address) -> RedisConnection:
        return await self._opened(self._to_one(address))

    async def _to_master(self) -> RedisConnection:
        settings = self._settings
        return await self._opened(
            to_master(
                addresses_of(settings),
                settings.sentinel,
                lambda address: RedisConnection.open(*address, RedisLogin("", "", 0, self._tls, address[0])),
                self._to_one,
                settings.connect_timeout,
            )
        )

    def _to_one(self, address: Address) -> Coroutine[Any, Any, RedisConnection]:
        settings = self._settings
        login = RedisLogin(settings.username, settings.password, settings.database, self._tls, address[0])
        return RedisConnection.open(*address, login)

    async def _opened(self, opening: Coroutine[Any, Any, RedisConnection]) -> RedisConnection:
        try:
            async with answer_within(self._settings.connect_timeout):
                return await opening
        except TimeoutError:
            raise SourceFailed("timeout", f"access.{self.name}.connect_timeout", away=True) from None
        except OSError as error:
            raise SourceFailed(NO_CONNECTION, detail=in_one_line(error), away=True) from None

    def close_connections(self) -> None:
        self._servers.close()


_NOTHING_ELSE: Final = AclRule(RuleSettings(allow=False), "access.redis.acl_cmd")
