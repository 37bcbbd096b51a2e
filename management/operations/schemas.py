"""Schemas: how SQL functions read and write binary payloads."""

from taipan.ruleengine.engine import RuleEngine
from taipan.ruleengine.records import SchemaRecord

from .durable_answer import check_storable, check_store_writable, wait_until_stored
from .refusal import engine_refusals


class Schemas:
    """Operations on schemas. They raise Refusal; a change is on disk when its call returns."""

    def __init__(self, engine: RuleEngine) -> None:
        self._schemas = engine.schemas
        self._tables = engine.server.tables

    def records(self) -> list[SchemaRecord]:
        """Return all schemas, oldest first."""
        return self._schemas.records()

    def lookup(self, name: str) -> SchemaRecord:
        with engine_refusals():
            return self._schemas.record(name)

    async def create(self, name: str, parser_type: str, schema: str, descr: str = "") -> SchemaRecord:
        """Create a schema. Refused if its text cannot be used."""
        check_store_writable(self._tables)
        check_storable("schema", [name, schema, descr])
        with engine_refusals():
            record = await self._schemas.create(name, parser_type, schema, descr)
        await wait_until_stored(self._tables)
        return record

    async def update(self, name: str, schema: str | None = None, descr: str | None = None) -> SchemaRecord:
        """Change the given fields. Rules use the new text from then on."""
        check_store_writable(self._tables)
        check_storable("schema", [schema, descr])
        with engine_refusals():
            record = await self._schemas.update(name, schema, descr)
        await wait_until_stored(self._tables)
        return record

    async def delete(self, name: str) -> None:
        """Delete a schema. Rules that use it fail from then on."""
        check_store_writable(self._tables)
        with engine_refusals():
            self._schemas.delete(name)
        await wait_until_stored(self._tables)
