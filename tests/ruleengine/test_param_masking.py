"""Parameters are masked by their declaration, and not by their names."""

from typing import Any

import pytest

from taipan.broker.observability.masking import MASK
from taipan.ruleengine.error import RuleEngineError
from taipan.ruleengine.params import Param, Text
from taipan.ruleengine.stored.param_masking import given_back, shown

NAMED = Text("", "")


def param(name: str, type: str | list[str] = "string", **options: Any) -> Param:
    return Param(name, 1, type, NAMED, NAMED, **options)


# ClickHouse calls its password key; the key of a Kafka message is none.
CLICKHOUSE = (param("server"), param("user"), param("key", "password"))
KAFKA = (param("servers"), param("key"), param("token_count", "number"), param("auth", ["string", "array"]))


def test_a_password_by_any_name() -> None:
    config = {"server": "http://127.0.0.1:8123", "user": "default", "key": "s3cr3t"}
    assert shown(config, CLICKHOUSE) == {**config, "key": MASK}
    assert shown({"pet": "s3cr3t"}, (param("pet", "password"),)) == {"pet": MASK}
    assert shown({"key": "${payload.k}"}, CLICKHOUSE) == {"key": MASK}


def test_what_is_named_like_a_secret_and_is_none() -> None:
    config = {"key": "${clientid}-1", "token_count": 5, "auth": ["plain", "scram"], "servers": "a:1"}
    assert shown(config, KAFKA) == config
    assert given_back({**config, "key": "other"}, config, KAFKA) == {**config, "key": "other"}


def test_secrets_within_a_parameter() -> None:
    declared = (param("headers", "object", parts=True), param("key", parts=True), param("properties", "object"))
    config = {
        "headers": {"Authorization": "Bearer s", "X": "y"},
        "key": "http://u:p@h/?token=abc",
        "properties": {"secret": "x"},
    }
    masked = {
        "headers": {"Authorization": MASK, "X": "y"},
        "key": f"http://u:{MASK}@h/?token={MASK}",
        "properties": {"secret": "x"},
    }
    assert shown(config, declared) == masked
    assert given_back(masked, config, declared) == config
    with pytest.raises(RuleEngineError, match=r"headers\.Authorization has \*"):
        given_back(masked, {}, declared)
    with pytest.raises(RuleEngineError, match=r"key has \*"):
        given_back({"key": f"http://u:{MASK}@h/"}, {}, declared)


def test_what_is_declared_without_a_secret_is_shown_as_it_is() -> None:
    """SQL and templates look like URLs and forms now and then."""
    declared = (param("sql"), param("fields", "object"), param("servers", "array"), param("count", "number"))
    config = {
        "sql": "UPDATE t SET token='x', url='http://u:p@h/' WHERE password=${payload.p}",
        "fields": {"secret": "x", "api_key": "y"},
        "servers": ["http://u:p@h"],
        "count": 5,
    }
    assert shown(config, declared) == config
    given = {**config, "sql": f"SELECT '{MASK}'"}
    assert given_back(given, config, declared) == given


def test_what_is_not_declared_goes_by_its_name() -> None:
    config = {"key": "k", "secret": "s", "server": "h"}
    masked = {"key": MASK, "secret": MASK, "server": "h"}
    assert shown(config, ()) == masked
    assert given_back(masked, config, ()) == config
    with pytest.raises(RuleEngineError, match=r"secret has \*"):
        given_back({"secret": MASK}, {}, ())


def test_a_mask_of_a_password_stands_for_what_is_stored() -> None:
    assert given_back({"key": MASK}, {"key": "s3cr3t"}, CLICKHOUSE) == {"key": "s3cr3t"}
    assert given_back({"key": "new"}, {"key": "s3cr3t"}, CLICKHOUSE) == {"key": "new"}
    with pytest.raises(RuleEngineError, match="key has"):
        given_back({"key": MASK}, {}, CLICKHOUSE)


def test_the_text_of_a_file() -> None:
    declared = (param("keyfile", "file"),)
    given = {"keyfile": {"filename": "k.pem", "file": "-----BEGIN PRIVATE KEY-----"}}
    masked = {"keyfile": {"filename": "k.pem", "file": MASK}}
    assert shown(given, declared) == masked and given_back(masked, given, declared) == given
    assert shown({"keyfile": "/etc/k.pem"}, declared) == {"keyfile": "/etc/k.pem"}
    as_text = {"keyfile": "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----"}
    hidden = shown(as_text, declared)
    assert "MIIE" not in str(hidden)
    assert given_back(hidden, as_text, declared) == as_text
