"""SchemaRegistry: the schemas of the node by name, and of all nodes of a cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from taipan.broker.loop.clock import Clock
from taipan.broker.persistence.tables import RowTooLarge, Table, Tables

from ..error import EXISTS, UNKNOWN, WRONG, RuleEngineError
from ..functions.function import SchemaCodec, no_schema
from ..functions.schemas import SPARKPLUG
from ..records import PARSER_TYPES, SchemaRecord
from ..stored.rows import MAX_ID, StoredSchema, expect
from . import avro, json_schema, protobuf, sparkplug
from .codec import MAX_SCHEMA, SchemaError

logger = logging.getLogger(__name__)

TABLE: Final = "schemas"
MAX_SCHEMAS: Final = 1000


_BUILT_IN: Final[dict[str, SchemaCodec]] = {SPARKPLUG: sparkplug.SparkplugSchema()}


class SchemaRegistry:
    """Schemas in the order of their creation. All refusals are RuleEngineError. A change is in memory when its call
    returns; for disk, wait for ``tables.stored()``."""

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._table: Table[StoredSchema] = tables.open(TABLE, StoredSchema, shared=True)
        self._table.on_taken.append(self._taken)
        self._codecs: dict[str, SchemaCodec] = dict(_BUILT_IN)

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def stored(self) -> list[StoredSchema]:
        """Return the rows, for lists and exports."""
        return sorted(self._table.values(), key=lambda row: (row.created_at, row.name))

    def stored_row(self, name: str) -> StoredSchema | None:
        return self._table.get(name)

    def records(self) -> list[SchemaRecord]:
        return [self._record(row) for row in self.stored()]

    def record(self, name: str) -> SchemaRecord:
        return self._record(self._get(name))

    def _get(self, name: str) -> StoredSchema:
        row = self._table.get(name)
        if row is None:
            raise RuleEngineError(UNKNOWN, f"there is no schema {name[:MAX_ID]}")
        return row

    def _record(self, row: StoredSchema) -> SchemaRecord:
        fault = row.fault
        if not fault:
            try:
                self._codec(row)
            except SchemaError as error:
                fault = str(error)
        return SchemaRecord(
            name=row.name,
            parser_type=row.parser_type,
            schema=row.schema,
            descr=row.descr,
            created_at=row.created_at,
            fault=fault,
        )

    def codec(self, name: str) -> SchemaCodec:
        """Return the compiled schema. Raises ValueError."""
        codec = self._codecs.get(name)
        if codec is not None:
            return codec
        row = self._table.get(name)
        if row is None:
            return no_schema(name)
        return self._codec(row)

    def _codec(self, row: StoredSchema) -> SchemaCodec:
        codec = self._codecs.get(row.name)
        if codec is None:
            if row.fault:
                raise SchemaError(row.fault)
            codec = self._codecs[row.name] = _compiled(row)
        return codec

    async def create(self, name: str, parser_type: str, schema: str, descr: str = "") -> SchemaRecord:
        """Create a schema; return its record."""
        async with self._lock:
            if name in self._table:
                raise RuleEngineError(EXISTS, f"schema {name[:MAX_ID]} already exists")
            row = await self._checked(name, parser_type, schema, descr)
            if row.fault:
                raise RuleEngineError(WRONG, f"schema: {row.fault}")
            if len(self._table) >= MAX_SCHEMAS:
                raise RuleEngineError(WRONG, f"the limit of {MAX_SCHEMAS} schemas is reached")
            return self._put(row)

    async def update(self, name: str, schema: str | None = None, descr: str | None = None) -> SchemaRecord:
        """Change the text or the description of a schema. Rules use the new text from then on."""
        async with self._lock:
            old = self._get(name)
            text, about = old.schema if schema is None else schema, old.descr if descr is None else descr
            row = await self._checked(name, old.parser_type, text, about, old.created_at)
            if row.fault:
                raise RuleEngineError(WRONG, f"schema: {row.fault}")
            if self._table.get(name) != old:
                raise RuleEngineError(WRONG, f"{name} was just changed by another node; check it and try again")
            return self._put(row)

    def delete(self, name: str) -> None:
        """Delete a schema. Rules that use it fail from then on."""
        self._get(name)
        self._table.remove(name)
        self._codecs.pop(name, None)
        logger.info("schema_deleted schema=%s", name)

    def adopt(self, row: StoredSchema) -> None:
        """Apply a row that ``check_record`` has returned, replacing the one with its name."""
        if self._table.get(row.name) != row:
            self._put(row)

    async def check_record(self, record: Mapping[str, Any]) -> StoredSchema | None:
        """Return the row of an imported record, or ``None`` if its parser type is unknown. Raises RuleEngineError.

        If the schema cannot be used, the row has a ``fault``."""
        name, kind = record.get("name"), record.get("parser_type")
        if not isinstance(name, str) or not isinstance(kind, str) or kind not in PARSER_TYPES:
            return None
        text, about = record.get("schema", ""), record.get("descr") or ""
        expect("schema", text, str, "a string")
        expect("descr", about, str, "a string")
        created_at = record.get("created_at")
        return await self._checked(name, kind, text, about, created_at if type(created_at) is int else 0)

    async def _checked(self, name: str, parser_type: str, schema: str, descr: str, created_at: int = 0) -> StoredSchema:
        if name in _BUILT_IN:
            raise RuleEngineError(EXISTS, f"schema {name} is built in")
        if not 0 < len(name) <= MAX_ID:
            raise RuleEngineError(WRONG, f"name: expected 1 to {MAX_ID} characters")
        if parser_type not in PARSER_TYPES:
            raise RuleEngineError(WRONG, f"parser_type: expected {', '.join(PARSER_TYPES[:-1])} or {PARSER_TYPES[-1]}")
        if len(schema) > MAX_SCHEMA:
            raise RuleEngineError(WRONG, f"schema: longer than {MAX_SCHEMA} characters")
        created_at = created_at or int(self._clock.wall() * 1000)
        row = StoredSchema(name, parser_type, schema, descr, created_at)
        try:
            if parser_type == protobuf.NAME:
                row = msgspec.structs.replace(row, compiled=await protobuf.compile_text(schema))
            _compiled(row)
        except SchemaError as error:
            row = msgspec.structs.replace(row, compiled=b"", fault=str(error))
        try:
            self._table.check(name, row)
        except RowTooLarge as error:
            raise RuleEngineError(WRONG, str(error)) from error
        return row

    def _put(self, row: StoredSchema) -> SchemaRecord:
        self._codecs.pop(row.name, None)
        self._table.put(row.name, row)
        logger.info("schema_stored schema=%s parser_type=%s", row.name, row.parser_type)
        return self._record(row)

    def _taken(self, name: str, old: object, new: object) -> None:
        """Another node has changed the schema."""
        self._codecs.pop(name, None)


def _compiled(row: StoredSchema) -> SchemaCodec:
    """Return the codec of a stored schema. Raises SchemaError."""
    if row.parser_type == avro.NAME:
        return avro.AvroSchema(row.schema)
    if row.parser_type == protobuf.NAME:
        return protobuf.ProtobufSchema(row.compiled)
    return json_schema.JsonSchema(row.schema)
