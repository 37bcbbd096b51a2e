"""A rule engine that is never started, for checks that only it can do: whether resources and rules would be
accepted."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from taipan.broker.config import DurabilitySettings
from taipan.broker.server import Server
from taipan.ruleengine.engine import RuleEngine
from taipan.ruleengine.error import RuleEngineError
from taipan.ruleengine.rules.import_check import ImportCheck

from ..configuration.config import load
from ..operations.backup.import_file import Plan
from .report import MigrationReport

Record = dict[str, Any]


@asynccontextmanager
async def scratch_engine() -> AsyncIterator[RuleEngine]:
    """Return an engine without listeners, connections and files."""
    settings = load(None, environ={})
    broker = msgspec.structs.replace(settings.broker, durability=DurabilitySettings(level="memory"))
    server = Server(broker)
    engine = RuleEngine(server, settings.ruleengine)
    try:
        yield engine
    finally:
        await engine.close()
        await server.access.stop()


def add_engine_rows(
    resources: Sequence[tuple[str, Record]], rules: Sequence[tuple[str, Record]], plan: Plan, report: MigrationReport
) -> None:
    """Add records in the form of an export, each with its place, to ``plan``."""
    if resources or rules:
        asyncio.run(_add(resources, rules, plan, report))


async def _add(
    resources: Sequence[tuple[str, Record]], rules: Sequence[tuple[str, Record]], plan: Plan, report: MigrationReport
) -> None:
    async with scratch_engine() as engine:
        check = ImportCheck(engine)
        for place, record in resources:
            try:
                resource = check.check_resource(record)
            except RuleEngineError as error:
                report.wrong(place, record["id"], error.message)
                continue
            assert resource is not None
            if resource.fault:
                report.wrong(place, resource.id, resource.fault)
            plan.resources.append(resource)
        for place, record in rules:
            try:
                rule = await check.check_rule(record)
            except RuleEngineError as error:
                report.wrong(place, record["id"], error.message)
                continue
            assert rule is not None
            plan.engine_rules.append(rule)
