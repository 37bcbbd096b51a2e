"""Alarm targets, silences and thresholds in export files, as the HTTP API shows them."""

from typing import Final, cast

from ...alarm_targets.kinds import KINDS, Kind
from ..alarm_targets import StoredSilence, StoredTarget, check_target
from ..alarm_thresholds import MAX_VALUE, NAMES, StoredThreshold
from ..refusal import Refusal
from .emqx_formats import BadField, Record
from .json_document import JsonObject

_MAX_PATTERN: Final = 256
_MAX_PATTERNS: Final = 50
_MAX_TEXT: Final = 1024


def target_record(target: tuple[str, StoredTarget]) -> JsonObject:
    """Return a record of ``alarm_targets``. The configuration has its secrets, as those of resources."""
    name, row = target
    return {"id": name, "type": row.kind, "enabled": row.enabled, "alarms": row.alarms, "config": row.config}


def read_target(value: object) -> tuple[str, StoredTarget]:
    """Read a record of ``alarm_targets``. Raises BadField."""
    record = Record(value)
    name = record.name("id")
    kind = cast(Kind, record.choice("type", *KINDS))
    alarms = record.get("alarms")
    if not isinstance(alarms, list) or not 0 < len(alarms) <= _MAX_PATTERNS:
        raise BadField("alarms", f"expected 1 to {_MAX_PATTERNS} patterns")
    if not all(isinstance(each, str) and 0 < len(each) <= _MAX_PATTERN for each in alarms):
        raise BadField("alarms", f"expected patterns of 1 to {_MAX_PATTERN} characters")
    config = record.get("config")
    if not isinstance(config, dict):
        raise BadField("config", "expected an object")
    row = StoredTarget(kind, record.flag("enabled"), alarms, config)
    try:
        check_target(name, row)
    except Refusal as refusal:
        raise BadField("", refusal.message) from None
    return name, row


def silence_record(silence: tuple[str, StoredSilence]) -> JsonObject:
    """Return a record of ``alarm_silences``."""
    name, row = silence
    return {
        "id": name,
        "alarms": row.alarms,
        "until": int(row.until),
        "reason": row.reason,
        "created_by": row.by,
        "created_at": int(row.created_at),
    }


def read_silence(value: object) -> tuple[str, StoredSilence]:
    """Read a record of ``alarm_silences``. Raises BadField."""
    record = Record(value)
    alarms = record.text("alarms", least=1, most=_MAX_TEXT)
    until, created_at = record.integer("until"), record.integer("created_at")
    reason, by = record.text("reason", "", most=4 * _MAX_TEXT), record.text("created_by", "", most=_MAX_TEXT)
    return record.text("id", least=1, most=64), StoredSilence(alarms, float(until), reason, by, float(created_at))


def threshold_record(threshold: tuple[str, StoredThreshold]) -> JsonObject:
    """Return a record of ``alarm_thresholds``."""
    name, row = threshold
    return {"name": name, "value": row.value}


def read_threshold(value: object) -> tuple[str, StoredThreshold]:
    """Read a record of ``alarm_thresholds``. Raises BadField."""
    record = Record(value)
    name, given = record.choice("name", *sorted(NAMES)), record.get("value")
    if given is None:
        return name, StoredThreshold(None)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= MAX_VALUE:
        raise BadField("value", f"expected a number from 0 to {MAX_VALUE:.0e}, or null")
    return name, StoredThreshold(float(given))
