"""Trials of the connections to remote sources of access, without a node: for ``taipan check --connect``."""

import asyncio

from ..config import AccessSettings
from ..loop.clock import Clock
from .registry import sources_of, table_of
from .remote import RemoteSource, SourceFailed
from .source import SourceContext


async def tried_sources(access: AccessSettings) -> dict[str, str]:
    """Connect to each configured remote source, as a node does at its start. Return by name why a source cannot be
    reached; the text is empty if it can. Raises ValueError for settings that cannot be used."""
    context = SourceContext(Clock(), lambda reason: None, access)
    made: list[RemoteSource] = []
    for declared in sources_of(access):
        table = table_of(access, declared)
        if declared.remote and table is not None:
            source = declared.made(table, context)
            if not isinstance(source, RemoteSource):
                raise ValueError(f"access.{declared.name}: create of the declaration returned no RemoteSource")
            made.append(source)
    try:
        return dict(zip([each.name for each in made], await asyncio.gather(*map(_fault, made)), strict=True))
    finally:
        for source in made:
            await source.stop()


async def _fault(source: RemoteSource) -> str:
    try:
        await source.try_connection()
    except SourceFailed as why:
        return f"{why.reason}: {why.detail or why.setting}"
    return ""
