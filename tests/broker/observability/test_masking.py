"""Masking: what is taken for a secret, what is not, and the way back."""

from typing import Any

import pytest

from taipan.broker.observability.masking import MASK, Masked, is_secret, mask, mask_text, restore

SECRETS = [
    "password", "Passwd", "db_password", "userPassword", "secret", "client_secret", "clientSecret", "token",
    "access_token", "X-Auth-Token", "Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie", "key",
    "api_key", "X-Api-Key", "apikey", "AccessKey", "sig", "signature", "credentials", "JWT",
]  # fmt: skip
OPEN = [
    "", "url", "username", "path", "keyfile", "keepalive", "monkey", "routing_key", "Idempotency-Key", "partitionKey",
    "keys", "passenger", "author", "tokens_left", "secretary", "$resource", "Content-Type", "payload_tmpl",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)
    assert mask({name: "x"}) == {name: MASK}
    assert mask({name: ["x", {"a": "y"}], "n": {name: 5}}) == {name: [MASK, {"a": "y"}], "n": {name: MASK}}
    assert mask({name: "", "b": {name: None}, "c": {name: True}}) == {name: "", "b": {name: None}, "c": {name: True}}


@pytest.mark.parametrize("name", OPEN)
def test_names_of_other_things(name: str) -> None:
    assert not is_secret(name)
    assert mask({name: "x"}) == {name: "x"}
    assert mask({name: "x"}, {name}) == {name: MASK}


@pytest.mark.parametrize("value", ["${token}", "Bearer ${token}", "Basic ${a}${b}"])
def test_what_a_message_fills_in_is_no_secret(value: str) -> None:
    assert mask({"headers": {"Authorization": value}}) == {"headers": {"Authorization": value}}


TEXTS = {
    "http://ann:hunter2@host:80/x?y=1": f"http://ann:{MASK}@host:80/x?y=1",
    "https://t0ken@host/": f"https://{MASK}@host/",
    "https://:pass@host/": f"https://:{MASK}@host/",
    "https://host/a?token=abc&x=1&api_key=3#end": f"https://host/a?token={MASK}&x=1&api_key={MASK}#end",
    "/a?x=1&sig=9%2F": f"/a?x=1&sig={MASK}",
    "token=abc&name=x": f"token={MASK}&name=x",
    "https://hooks.chat.example/services/T0000/aB3dEfGh1jKlMn0pQrSt": f"https://hooks.chat.example/services/T0000/{MASK}",
    "https://chat.example/bot123456:ABC-DEF1234ghIkl-zyx57W2/send": f"https://chat.example/{MASK}/send",
    "https://chat.example/hooks/ab3defgh1jklmn0pqrstuvwx2y": f"https://chat.example/hooks/{MASK}",
    "https://team.example/b2/IncomingWebhook/0f1e2d3c4b5a69788796a5b4c3d2e1f0/a": (
        f"https://team.example/b2/IncomingWebhook/{MASK}/a"
    ),
    "cannot reach http://ann:x@host/, twice http://bob:y@host/": (
        f"cannot reach http://ann:{MASK}@host/, twice http://bob:{MASK}@host/"
    ),
    "-----BEGIN PRIVATE KEY-----\nabc": MASK,
}
PLAIN = [
    "http://host:80/x?y=1", "https://host/6f1e9d36-1111-2222-3333-444455556666/x", "mqtt://host:1883", "host:1883",
    "a/b/c", "user@host", "https://host/a?token=${token}", "SELECT * FROM \"a\" WHERE b = 1", '{"a": "${b}"}', MASK,
    "https://host/things/that-have-long-names-of-small-letters", "https://host/measurements-of-line-17-and-18/x",
    "https://host/12345678901234567890/x", "https://host/abcdefghijklmnopqrstuvwxyz/x",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_secrets_in_texts(text: str) -> None:
    assert mask_text(text) == TEXTS[text]
    assert mask_text(TEXTS[text]) == TEXTS[text]


@pytest.mark.parametrize("text", PLAIN)
def test_other_texts_stay(text: str) -> None:
    assert mask_text(text) == text


STORED: dict[str, Any] = {
    "url": "http://ann:hunter2@host/a?token=abc",
    "headers": {"Authorization": "Bearer x", "X-Trace": "1"},
    "list": [{"password": "p"}, {"password": "q"}],
    "pin": "1234",
    "number": {"token": 7},
}


def test_a_round_trip_keeps_what_was_stored() -> None:
    shown = mask(STORED, {"pin"})
    assert not [secret for secret in ("hunter2", "abc", "Bearer", "1234", '"p"', "7") if secret in str(shown)]
    assert restore(shown, STORED, {"pin"}) == STORED


def test_a_change_beside_a_mask_and_of_the_secret_itself() -> None:
    shown = mask(STORED, {"pin"})
    shown["headers"]["X-Trace"] = "2"
    shown["list"][1]["password"] = "new"
    del shown["pin"]
    restored = restore(shown, STORED, {"pin"})
    assert restored["headers"] == {"Authorization": "Bearer x", "X-Trace": "2"}
    assert restored["list"] == [{"password": "p"}, {"password": "new"}]
    assert "pin" not in restored


@pytest.mark.parametrize(
    "change, place",
    [
        ({"url": f"http://ann:{MASK}@elsewhere/a?token={MASK}"}, "url"),  # the secret does not go to another host
        ({"headers": {"X-Token": MASK}}, "headers.X-Token"),
        ({"list": [{}, {}, {"password": MASK}]}, "list[2].password"),
        ({"other": {"secret": MASK}}, "other.secret"),
    ],
)
def test_a_mask_that_stands_for_nothing_known(change: dict[str, Any], place: str) -> None:
    with pytest.raises(Masked) as refused:
        restore(change, STORED)
    assert str(refused.value).startswith(f"{place} has {MASK}, ")


def test_asterisks_that_are_no_mask() -> None:
    given = {"body": f"{MASK} ALARM {MASK}", "headers": {"X-Title": MASK}}
    assert restore(given, {}) == given
