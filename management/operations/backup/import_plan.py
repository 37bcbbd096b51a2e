"""Import plans on disk: the records that an import is about to store, so that the next start can finish the import
after a crash."""

from collections.abc import Iterator
from typing import Final

import msgspec

from taipan.broker.access.banned import Ban
from taipan.broker.access.stored.users import StoredUser
from taipan.ruleengine.stored.rows import StoredResource, StoredRule, StoredSchema

from ..alarm_targets import StoredSilence, StoredTarget
from ..alarm_thresholds import StoredThreshold
from ..apps import App
from ..dashboard_users import DashboardUser
from .emqx_formats import AccessRule
from .import_file import Plan
from .passthrough import PassthroughRecord
from .retained_records import ExportedRetained

PLAN_FILE: Final = "import.plan"
"""In the data directory: a plan that the next start applies."""
_MAGIC: Final = b"taipan import 1\n"
_ROWS: Final = 500
_LENGTH: Final = 4


class _Part(msgspec.Struct, array_like=True):
    """Rows of one kind, named after the attribute of ``Plan``; for ``carried``, with the section."""

    kind: str
    section: str
    rows: msgspec.Raw


_KINDS: Final[dict[str, object]] = {
    "users": list[StoredUser],
    "rules": list[AccessRule],
    "bans": list[tuple[Ban, bool]],
    "apps": list[App],
    "dashboard_users": list[DashboardUser],
    "schemas": list[StoredSchema],
    "resources": list[StoredResource],
    "engine_rules": list[StoredRule],
    "retained": list[ExportedRetained],
    "alarm_targets": list[tuple[str, StoredTarget]],
    "alarm_silences": list[tuple[str, StoredSilence]],
    "alarm_thresholds": list[tuple[str, StoredThreshold]],
    "carried": list[PassthroughRecord],
}


def written_plan(name: str, plan: Plan) -> Iterator[bytes]:
    """Yield the encoded plan in short pieces."""
    yield _MAGIC + _framed(name.encode())
    for kind in _KINDS:
        sections = plan.carried if kind == "carried" else {"": getattr(plan, kind)}
        for section, rows in sections.items():
            for at in range(0, len(rows), _ROWS):
                encoded = msgspec.Raw(msgspec.msgpack.encode(rows[at : at + _ROWS]))
                yield _framed(msgspec.msgpack.encode(_Part(kind, section, encoded)))
    yield _framed(b"")


def read_plan(data: bytes) -> tuple[str, Plan]:
    """Return name and plan. Raises ``ValueError`` if the plan is damaged."""
    name, *frames = _frames(data)
    plan = Plan()
    for frame in frames:
        try:
            part = msgspec.msgpack.decode(frame, type=_Part)
            rows = msgspec.msgpack.decode(part.rows, type=_KINDS[part.kind])
        except (msgspec.MsgspecError, KeyError) as error:
            raise ValueError(f"a part of it cannot be read: {error}") from None
        into = plan.carried.setdefault(part.section, []) if part.kind == "carried" else getattr(plan, part.kind)
        into += rows
    return name.decode(), plan


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH, "big") + data


def _frames(data: bytes) -> Iterator[bytes]:
    """Yield frames up to the empty one, which must exist."""
    if not data.startswith(_MAGIC):
        raise ValueError("not an import plan")
    at = len(_MAGIC)
    while True:
        end = at + _LENGTH + int.from_bytes(data[at : at + _LENGTH], "big")
        if at + _LENGTH > len(data) or end > len(data):
            raise ValueError("its end is missing")
        if end == at + _LENGTH:
            return
        yield data[at + _LENGTH : end]
        at = end
