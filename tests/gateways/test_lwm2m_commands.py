"""Commands for LwM2M devices, their answers, and registrations, as pure functions."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.gateways.lwm2m import answers, objects, registration, tlv
from taipan.broker.gateways.lwm2m.commands import (
    CANCEL,
    DELETE,
    GET,
    OBSERVE,
    POST,
    PUT,
    BadCommand,
    DeviceCommand,
    DeviceRequest,
    parse_command,
)
from taipan.broker.gateways.lwm2m.content import JSON, LINK_FORMAT, TEXT, TLV

OBJECTS = objects.load(None)
LIMITS = registration.Lifetimes(1, 86_400)


def command(kind: str, **data: Any) -> DeviceCommand:
    return parse_command(json.dumps({"reqID": 7, "msgType": kind, "data": data}).encode(), OBJECTS)


def request(kind: str, **data: Any) -> DeviceRequest:
    return command(kind, **data).request


def test_commands_without_values() -> None:
    assert request("read", path="/3/0/1") == request("read", path="3/0/1") == DeviceRequest(GET, (3, 0, 1))
    assert request("read", path="/3/0/6/0") == DeviceRequest(GET, (3, 0, 6, 0))
    assert request("discover", path="/3") == DeviceRequest(GET, (3,), accept=LINK_FORMAT)
    assert request("observe", path="/3/0") == DeviceRequest(GET, (3, 0), observe=OBSERVE)
    assert request("cancel-observe", path="/3/0") == DeviceRequest(GET, (3, 0), observe=CANCEL)
    assert request("delete", path="/2/1") == DeviceRequest(DELETE, (2, 1))


def test_execute() -> None:
    assert request("execute", path="/3/0/4") == DeviceRequest(POST, (3, 0, 4), content_format=TEXT)
    for none in (None, "undefined", ""):
        assert request("execute", path="/3/0/4", args=none).payload == b""
    assert request("execute", path="/3/0/4", args="0='a',1").payload == b"0='a',1"


def test_write_attributes() -> None:
    found = request("write-attr", path="/3/0/9", pmin=1, pmax="60", gt=42.25, lt=None, st="", other=5)
    assert found == DeviceRequest(PUT, (3, 0, 9), query=("pmin=1", "pmax=60", "gt=42.25", "st"))
    assert request("write-attr", path="/3", lt=-0.0000001).query == ("lt=-0.0000001",)


def test_write_of_a_single_value() -> None:
    found = request("write", path="/3/0/13", type="Time", value=1000)
    payload = tlv.encode([tlv.Tlv(tlv.RESOURCE, 13, b"\x03\xe8")])
    assert found == DeviceRequest(PUT, (3, 0, 13), payload=payload, content_format=TLV)
    assert request("write", path="/3/0/13", value="1000") == found  # with the type of the definition
    assert request("write", basePath="/", path="/3/0/13", type="Time", value=1000) == found
    found = request("write", path="/1/0/6", type="Boolean", value="true")
    assert tlv.decode(found.payload) == [tlv.Tlv(tlv.RESOURCE, 6, b"\1")]
    found = request("write", path="/2/0/2/5", type="Integer", value=1)
    assert (found.path, tlv.decode(found.payload)) == ((2, 0, 2, 5), [tlv.Tlv(tlv.RESOURCE_INSTANCE, 5, b"\1")])


def test_write_of_several_values() -> None:
    rows = [
        {"path": "14", "type": "String", "value": "+01:00"},
        {"path": "/6/1", "type": "Integer", "value": "5"},
        {"path": "6/0", "type": "Integer", "value": 1},
    ]
    found = request("write", basePath="/3/0", content=rows)
    assert (found.code, found.path, found.content_format) == (POST, (3, 0), TLV)
    instances = tlv.Tlv(tlv.RESOURCE_INSTANCE, 1, b"\5"), tlv.Tlv(tlv.RESOURCE_INSTANCE, 0, b"\1")
    assert tlv.decode(found.payload) == [
        tlv.Tlv(tlv.RESOURCE, 14, b"+01:00"),
        tlv.Tlv(tlv.MULTIPLE_RESOURCE, 6, inner=instances),
    ]
    found = request("write", basePath="/2/0/2", content=[{"path": "1", "value": 3}])
    assert (found.code, found.path) == (PUT, (2, 0, 2))
    inner = (tlv.Tlv(tlv.RESOURCE_INSTANCE, 1, b"\3"),)
    assert tlv.decode(found.payload) == [tlv.Tlv(tlv.MULTIPLE_RESOURCE, 2, inner=inner)]
    found = request("write", basePath="/9999/0/2", content=[{"path": "", "type": "String", "value": "x"}])
    assert tlv.decode(found.payload) == [tlv.Tlv(tlv.RESOURCE, 2, b"x")]


def test_write_of_hexadecimal_values() -> None:
    def payload(kind: str, value: object) -> bytes:
        data = {"path": "/9999/0/1", "type": kind, "value": value}
        message = {"msgType": "write", "encoding": "hex", "data": data}
        [entry] = tlv.decode(parse_command(json.dumps(message).encode(), OBJECTS).request.payload)
        return entry.value

    assert payload("Opaque", "00ff") == b"\x00\xff"
    assert payload("String", "4142") == b"AB"
    assert payload("Integer", "3132") == b"\x0c"
    for bad in ("0", "xy", 5, None, "ff"):
        with pytest.raises(BadCommand):
            payload("Integer", bad)


def test_create() -> None:
    rows = [{"path": "/0/0", "type": "Integer", "value": 3}, {"path": "1/2/0", "type": "Integer", "value": 1}]
    found = request("create", basePath="/2", content=rows)
    assert (found.code, found.path, found.content_format) == (POST, (2,), TLV)
    first, second = tlv.decode(found.payload)
    assert first == tlv.Tlv(tlv.OBJECT_INSTANCE, 0, inner=(tlv.Tlv(tlv.RESOURCE, 0, b"\3"),))
    assert (second.kind, second.id, second.inner[0].kind) == (tlv.OBJECT_INSTANCE, 1, tlv.MULTIPLE_RESOURCE)
    assert request("create", basePath="/2").payload == request("create", basePath="/2", content=[]).payload == b""


BAD = [
    ("{", "not JSON"),
    ("[]", "a JSON object is required"),
    ('{"a":' + "[" * 100_000, "not JSON"),
    ("{}", "msgType is not one of read, discover"),
    ('{"msgType":["read"]}', "msgType is not one of"),
    ('{"msgType":"read"}', "data is not an object"),
    ('{"msgType":"read","data":{}}', "data.path is missing"),
    ('{"msgType":"read","data":{"path":3}}', "data.path is missing, or not a string"),
    ('{"msgType":"read","data":{"path":"/"}}', "has 0 numbers, not 1 to 4"),
    ('{"msgType":"read","data":{"path":"/3/x"}}', "'x' is not a number"),
    ('{"msgType":"read","encoding":"base64","data":{"path":"/3"}}', "neither plain nor hex"),
    ('{"msgType":"discover","data":{"path":"/3/0/6/0"}}', "has 4 numbers, not 1 to 3"),
    ('{"msgType":"delete","data":{"path":"/3"}}', "has 1 numbers, not 2"),
    ('{"msgType":"execute","data":{"path":"/3/0"}}', "has 2 numbers, not 3"),
    ('{"msgType":"execute","data":{"path":"/3/0/4","args":5}}', "data.args is not a string"),
    ('{"msgType":"write-attr","data":{"path":"/3"}}', "data has none of pmin"),
    ('{"msgType":"write-attr","data":{"path":"/3","pmin":true}}', "data.pmin is not a number"),
    ('{"msgType":"write-attr","data":{"path":"/3","gt":"1&lt=2"}}', "data.gt is not a number"),
    ('{"msgType":"write","data":{"path":"/3/0","type":"Time","value":1}}', "has 2 numbers"),
    ('{"msgType":"write","data":{"path":"/3/0/13","type":"Date","value":1}}', "'Date' is not a type"),
    ('{"msgType":"write","data":{"path":"/3/0/13","type":["Time"],"value":1}}', "type is missing, or not a string"),
    ('{"msgType":"write","data":{"path":"/9999/0/1","value":1}}', "has no definition"),
    ('{"msgType":"write","data":{"path":"/3/0/13"}}', "value is missing"),
    ('{"msgType":"write","data":{"path":"/3/0/13","value":"now"}}', "not an integer"),
    ('{"msgType":"write","data":{"basePath":"/3","content":[]}}', "has 1 numbers"),
    ('{"msgType":"write","data":{"basePath":"/3/0"}}', "data.content is not a list"),
    ('{"msgType":"write","data":{"basePath":"/3/0","content":[]}}', "data.content is not a list with values"),
    ('{"msgType":"write","data":{"basePath":"/3/0","content":[5]}}', "is not an object"),
    ('{"msgType":"write","data":{"basePath":"/3/0","content":[{"path":5,"value":1}]}}', "must be a string"),
    ('{"msgType":"write","data":{"basePath":"/3/0","content":[{"path":"1/2/3","value":1}]}}', "too long for"),
    ('{"msgType":"write","data":{"basePath":"/3/0","content":[{"type":"String","value":"1"}]}}', "one number or two"),
    (
        '{"msgType":"write","data":{"basePath":"/3/0","content":[{"path":"6","value":1},{"path":"6/0","value":1}]}}',
        "both a value and instances",
    ),
    ('{"msgType":"write","data":{"basePath":"/2/0/2","content":[{"value":1}]}}', "must be one number"),
    ('{"msgType":"create","data":{"basePath":"/2/0"}}', "has 2 numbers, not 1"),
    ('{"msgType":"create","data":{"basePath":"/2","content":[{"path":"0","type":"String","value":""}]}}', "/0/1"),
]


@pytest.mark.parametrize("payload, text", BAD)
def test_bad_commands_have_a_clear_answer(payload: str, text: str) -> None:
    with pytest.raises(BadCommand, match=text) as raised:
        parse_command(payload.encode(), OBJECTS)
    answer = json.loads(answers.encode(answers.bad_command(raised.value)))
    assert (answer["data"]["code"], answer["data"]["codeMsg"]) == ("4.00", "bad_request")
    assert answer["data"]["reason"] == str(raised.value)


def test_a_command_with_too_many_values() -> None:
    with pytest.raises(BadCommand, match="more than 1024 values"):
        request("write", basePath="/3/0", content=[{"path": "1", "value": "x"}] * 1025)


def test_the_answer_to_a_bad_command_repeats_its_fields() -> None:
    with pytest.raises(BadCommand) as raised:
        parse_command(b'{"reqID":9,"mine":[1],"msgType":"write","data":{"basePath":"/3"}}', OBJECTS)
    answer = answers.bad_command(raised.value)
    assert (answer["reqID"], answer["mine"], answer["msgType"]) == (9, [1], "write")
    assert answer["data"]["reqPath"] == "/3"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KINDS = ["read", "discover", "observe", "cancel-observe", "write", "write-attr", "execute", "create", "delete"]
some_paths = st.sampled_from(["/3", "/3/0", "/3/0/9", "/2/0/2/1", "/", "x"])


@given(
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(["path", "basePath"]), some_paths),
    st.dictionaries(st.sampled_from(["type", "value", "args", "pmin", "content"]), json_values),
    st.lists(st.fixed_dictionaries({"path": some_paths, "value": json_values}), max_size=3),
)
def test_any_command_is_a_request_or_an_error(kind: str, where: Any, what: Any, rows: Any) -> None:
    for data in ({**where, **what}, {**where, "content": rows}):
        try:
            found = command(kind, **data)
        except BadCommand as error:
            answers.encode(answers.bad_command(error))
        else:
            assert len(found.request.path) >= 1 and found.kind == kind


@given(st.binary(max_size=100))
def test_any_bytes_are_a_command_or_an_error(payload: bytes) -> None:
    with pytest.raises(BadCommand):
        parse_command(payload, OBJECTS)


def answered(asked: DeviceCommand, code: int, payload: bytes = b"", number: int | None = None) -> dict[str, Any]:
    return json.loads(answers.encode(answers.answer(asked, code, payload, number, OBJECTS)))


def test_answers_with_content() -> None:
    asked = command("read", path="/3/0/0")
    assert answered(asked, 0x45, b"EMQ", TEXT) == {
        "reqID": 7,
        "msgType": "read",
        "data": {
            "reqPath": "/3/0/0",
            "code": "2.05",
            "codeMsg": "content",
            "content": [{"path": "/3/0/0", "value": "EMQ"}],
        },
    }
    asked = command("discover", path="/3/0")
    data = answered(asked, 0x45, b'</3/0>;dim=8,</3/0/0>,</3/0/1>;x="a,b"', LINK_FORMAT)["data"]
    assert data["content"] == ["</3/0>;dim=8", "</3/0/0>", '</3/0/1>;x="a,b"']
    asked = command("observe", path="/3/0/9")
    first = answered(asked, 0x45, b"87", TEXT)
    assert (first["msgType"], first["data"]["content"]) == ("observe", [{"path": "/3/0/9", "value": 87}])
    later = answers.notification(answers.answer(asked, 0x45, b"86", TEXT, OBJECTS), 12)
    assert (later["msgType"], later["seqNum"], later["reqID"]) == ("notify", 12, 7)
    assert later["data"]["content"] == [{"path": "/3/0/9", "value": 86}]
    cancelled = answered(command("cancel-observe", path="/3/0/9"), 0x45, b"85", TEXT)
    assert (cancelled["msgType"], cancelled["data"]["content"][0]["value"]) == ("cancel-observe", 85)


CODES = {
    0x41: ("2.01", "created"), 0x42: ("2.02", "deleted"), 0x44: ("2.04", "changed"), 0x80: ("4.00", "bad_request"),
    0x81: ("4.01", "unauthorized"), 0x84: ("4.04", "not_found"), 0x85: ("4.05", "method_not_allowed"),
    0x86: ("4.06", "not_acceptable"), 0x8F: ("4.15", "unsupported_content_format"),
    0xA0: ("5.00", "internal_server_error"), 0xBF: ("5.31", "unknown"),
}  # fmt: skip


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("kind, data", [
    ("write", {"path": "/3/0/14", "value": "x"}), ("execute", {"path": "/3/0/4"}), ("delete", {"path": "/2/0"}),
    ("create", {"basePath": "/2"}), ("write-attr", {"path": "/3", "pmin": 1}), ("read", {"path": "/3"}),
    ("discover", {"path": "/3"}), ("observe", {"path": "/3"}), ("cancel-observe", {"path": "/3"}),
])  # fmt: skip
def test_answers_with_a_code(kind: str, data: dict[str, Any], code: int) -> None:
    named = data.get("path", data.get("basePath"))
    wanted = {"reqPath": named, "code": CODES[code][0], "codeMsg": CODES[code][1]}
    assert answered(command(kind, **data), code, b"the device's words") == {"reqID": 7, "msgType": kind, "data": wanted}


def test_answers_that_cannot_be_understood() -> None:
    data = answered(command("read", path="/3/0/9"), 0x45, b"many", TEXT)["data"]
    assert (data["code"], data["codeMsg"], "content" in data) == ("4.00", "bad_request", False)
    assert data["reason"] == "the answer of the device: 'many' is not an integer"
    assert answered(command("discover", path="/3"), 0x45, b"\xff", LINK_FORMAT)["data"]["code"] == "4.00"
    assert answered(command("read", path="/3/0"), 0x45, b"{", JSON)["data"]["code"] == "4.00"


def test_a_confirmation_and_no_answer() -> None:
    asked = command("read", path="/3/0/9")
    assert answers.acknowledged(asked) == {"reqID": 7, "msgType": "ack"}
    data = answers.failure(asked, answers.TIMEOUT, "no answer")["data"]
    assert data == {"reqPath": "/3/0/9", "code": "5.04", "codeMsg": "gateway_timeout", "reason": "no answer"}


QUERY = ("ep=pump-7", "lt=300", "lwm2m=1.0", "b=UQ", "sms=+49")


def test_a_registration() -> None:
    found = registration.register(QUERY, b'</lwm2m>;rt="oma.lwm2m";ct=11543,</lwm2m/1/0>,</lwm2m/3/0>', LIMITS)
    assert (found.endpoint, found.lifetime, found.version, found.queue_mode) == ("pump-7", 300, "1.0", True)
    assert found.record() == {
        "ep": "pump-7", "lt": 300, "lwm2m": "1.0", "b": "UQ", "sms": "+49", "alternatePath": "/lwm2m",
        "objectList": ["/1/0", "/3/0"],
    }  # fmt: skip
    plain = registration.register(("ep=a", "lwm2m=1"), b"</1/0>, </3/0>", LIMITS)
    assert (plain.lifetime, plain.root, plain.queue_mode) == (86_400, "/", False)
    assert plain.record() == {
        "ep": "a", "lt": 86_400, "lwm2m": "1", "alternatePath": "/", "objectList": ["/1/0", "/3/0"],
    }  # fmt: skip
    root = registration.register(("ep=a", "lwm2m=1"), b'</>;rt="oma.lwm2m";ct=11543,</1>', LIMITS)
    assert (root.root, root.objects) == ("/", ("/1",))


def test_an_update() -> None:
    before = registration.register(QUERY, b"</1/0>,</3/0>", LIMITS)
    after = registration.update(before, ("lt=600",), b"", LIMITS)
    assert (after.lifetime, after.objects, after.queue_mode) == (600, before.objects, True)
    assert after.record() == before.record() | {"lt": 600}
    after = registration.update(after, ("b=U",), b"</3/0>", LIMITS)
    assert (after.objects, after.queue_mode, after.endpoint) == (("/3/0",), False, "pump-7")
    assert registration.update(before, ("ep=other",), b"", LIMITS).endpoint == "pump-7"
    with pytest.raises(registration.RegistrationRefused):
        registration.update(before, ("lt=0",), b"", LIMITS)


@pytest.mark.parametrize(
    "query, payload, code, text",
    [
        ((), b"", 0x80, "ep is missing"), (("ep=", "lwm2m=1"), b"", 0x80, "ep is missing"),
        (("ep=a+b", "lwm2m=1"), b"", 0x80, "one of / "), (("ep=#", "lwm2m=1"), b"", 0x80, "one of / "),
        (("ep=a/b", "lwm2m=1"), b"", 0x80, "one of / "), (("ep=a\x01", "lwm2m=1"), b"", 0x80, "control"),
        (("ep=$share", "lwm2m=1"), b"", 0x80, "begins with"),
        (("ep=" + "a" * 256, "lwm2m=1"), b"", 0x80, "255 bytes"), (("ep=a",), b"", 0x8C, "lwm2m is missing"),
        (("ep=a", "lwm2m=2"), b"", 0x8C, "not 1"), (("ep=a", "lwm2m=1.x"), b"", 0x8C, "not 1"),
        (("ep=a", "lwm2m=1", "lt=0"), b"", 0x80, "lifetime_min"),
        (("ep=a", "lwm2m=1", "lt=86401"), b"", 0x80, "lifetime_max"),
        (("ep=a", "lwm2m=1", "lt=x"), b"", 0x80, "not a number"), (("ep=a", "lwm2m=1", "b=T"), b"", 0x80, "b is not"),
        (("ep=a", "ep=b", "lwm2m=1"), b"", 0x80, "twice"), (("ep=a", "lwm2m=1"), b"\xff", 0x80, "list of objects"),
        (("ep=a", "lwm2m=1"), b"</1>," * 600, 0x80, "more than 512"),
        (("ep=a", "lwm2m=1", "sms=" + "1" * 300), b"", 0x80, "more than 255"),
    ],
)  # fmt: skip
def test_registrations_that_are_refused(query: tuple[str, ...], payload: bytes, code: int, text: str) -> None:
    with pytest.raises(registration.RegistrationRefused, match=text) as raised:
        registration.register(query, payload, LIMITS)
    assert raised.value.code == code
