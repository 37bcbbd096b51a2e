"""RedisSource: asks Redis or Valkey over a pool of connections."""

from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, Final

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ...config import RuleSettings
from ...redis_connection import SecureRedisConnection, in_one_line
from ...setting_rules import Fault
from ..acl import AclRule
from ..database import DatabaseSource, Queries, StoredPassword, Values, as_bytes, as_text, hash_of_columns, new_rule
from ..database_checks import common_faults, tls_of
from ..database_settings import address_of
from ..password_hash import PasswordVerifier
from ..query_hash import HashFormat
from ..remote import SourceFailed
from ..remote_status import NO_CONNECTION
from ..source import SourceContext
from .command import RedisCommand
from .declaration import RedisAccessSettings

_WORDS: Final = ("auth_cmd", "super_cmd", "acl_cmd")


def _asked(settings: RedisAccessSettings) -> dict[str, str]:
    return {"auth_cmd": settings.auth_cmd, "super_cmd": settings.super_cmd, "acl_cmd": settings.acl_cmd}


def faults(settings: RedisAccessSettings) -> Iterator[Fault]:
    """Yield the faults between several keys, and of files."""
    yield from common_faults(settings, _asked(settings))


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
        self._client: Redis | None = None

    async def connect(self) -> None:
        """PING, over a connection of its own."""
        client = self._new_client(1)
        try:
            await self._done(client, "PING")
        except SourceFailed as why:
            raise SourceFailed(NO_CONNECTION, detail=why.detail, away=True) from None
        finally:
            await client.aclose()

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
        """Whoever has a list of topics may do nothing else."""
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
        if self._client is None:
            self._client = self._new_client(self._settings.pool_size)
        return await self._done(self._client, *self._commands[word].words(values))

    @staticmethod
    async def _done(client: Any, *words: str) -> Any:
        try:
            return await client.execute_command(*words)
        except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
            raise SourceFailed(NO_CONNECTION, detail=in_one_line(error), away=True) from None
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            # Whether it was never there or has ended the connection, the library does not say.
            raise SourceFailed(NO_CONNECTION, detail=in_one_line(error), away=True) from None
        except exceptions.RedisError as error:
            raise SourceFailed("query", detail=in_one_line(error)) from None

    def _new_client(self, connections: int) -> Redis:
        settings = self._settings
        host, port = address_of(settings.server, 6379)
        pool = BlockingConnectionPool(
            connection_class=SecureRedisConnection,
            tls=self._tls,
            max_connections=connections,
            timeout=None,
            host=host,
            port=port,
            db=settings.database,
            username=settings.username or None,
            password=settings.password or None,
            socket_connect_timeout=settings.connect_timeout,
            # A connection may have been closed while nobody used it.
            retry=Retry(NoBackoff(), 1),
        )
        return Redis.from_pool(pool)

    def close_connections(self) -> Coroutine[Any, Any, None] | None:
        client, self._client = self._client, None
        return None if client is None else client.aclose()


_NOTHING_ELSE: Final = AclRule(RuleSettings(allow=False), "access.redis.acl_cmd")
