"""The forms of values in LwM2M: TLV, JSON, text and opaque, links, and the XML of definitions."""

import math
from pathlib import Path as FilePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.gateways.lwm2m import content, links, objects, paths, tlv, values

OBJECTS = objects.load(None)

instances = st.builds(tlv.Tlv, st.just(tlv.RESOURCE_INSTANCE), st.integers(0, 65_535), st.binary(max_size=300))
resources = st.one_of(
    st.builds(tlv.Tlv, st.just(tlv.RESOURCE), st.integers(0, 65_535), st.binary(max_size=70_000)),
    st.builds(
        tlv.Tlv,
        st.just(tlv.MULTIPLE_RESOURCE),
        st.integers(0, 65_535),
        inner=st.lists(instances, max_size=4).map(tuple),
    ),
)
entries = st.lists(
    st.one_of(
        resources,
        instances,
        st.builds(
            tlv.Tlv,
            st.just(tlv.OBJECT_INSTANCE),
            st.integers(0, 65_535),
            inner=st.lists(resources, max_size=4).map(tuple),
        ),
    ),
    max_size=5,
)


@given(entries)
def test_tlv_that_is_encoded_is_decoded(given_entries: list[tlv.Tlv]) -> None:
    assert tlv.decode(tlv.encode(given_entries)) == given_entries


@given(st.binary(max_size=400))
def test_any_bytes_are_tlv_or_an_error(data: bytes) -> None:
    try:
        found = tlv.decode(data)
    except tlv.BadTlv:
        return
    assert tlv.decode(tlv.encode(found)) == found


def test_tlv_of_the_standard() -> None:
    """The Device object of the examples of LwM2M 1.0, 6.4.3.1: strings, integers, a resource with instances."""
    data = bytes.fromhex(
        "C800144F70656E204D6F62696C6520416C6C69616E6365 C801164C69676874776569676874204D324D20436C69656E74"
        "C80209333435303030313233 C303312E30 8606 410001 410105 880708 4200 0ED8 4201 1388 8708 4100 7D 4201 0384"
        "C10964 C10A0F 830B 410000 C40D5182428F C6 0E2B30323A3030 C11055"
    )
    rows = content.to_content((3, 0), content.TLV, data, OBJECTS)
    found = {row["path"]: row["value"] for row in rows}
    assert found["/3/0/0"] == "Open Mobile Alliance" and found["/3/0/2"] == "345000123"
    assert (found["/3/0/6/0"], found["/3/0/6/1"]) == (1, 5)
    assert (found["/3/0/7/0"], found["/3/0/7/1"]) == (3800, 5000)
    assert (found["/3/0/8/0"], found["/3/0/8/1"]) == (125, 900)
    assert found["/3/0/13"] == 1_367_491_215 and found["/3/0/14"] == "+02:00" and found["/3/0/16"] == "U"


@pytest.mark.parametrize(
    "data, text",
    [
        (b"\xc8", "incomplete"),
        (b"\xc1\x00", "incomplete"),
        (b"\xc8\x00\xff1", "incomplete"),
        (b"\x02\x00\x00\x00", "inside another"),  # an instance of an object in another one
        (b"\xc0\x00" * (tlv.MAX_ENTRIES + 1), "more than 4096"),
    ],
)
def test_bytes_that_are_not_tlv(data: bytes, text: str) -> None:
    with pytest.raises(tlv.BadTlv, match=text):
        tlv.decode(data)


def test_tlv_that_cannot_be_encoded() -> None:
    for bad in (
        tlv.Tlv(tlv.RESOURCE, 70_000),
        tlv.Tlv(tlv.RESOURCE, 1, inner=(tlv.Tlv(tlv.RESOURCE, 1),)),
        tlv.Tlv(tlv.MULTIPLE_RESOURCE, 1, inner=(tlv.Tlv(tlv.RESOURCE, 1),)),
        tlv.Tlv(tlv.OBJECT_INSTANCE, 1, b"x"),
    ):
        with pytest.raises(tlv.BadTlv):
            tlv.encode([bad])


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_integers_in_both_directions(number: int) -> None:
    for kind in (values.INTEGER, values.TIME):
        data = values.to_bytes(kind, number)
        assert len(data) in (1, 2, 4, 8) and values.from_bytes(kind, data) == number
        assert values.to_bytes(kind, str(number)) == data
        assert values.from_text(kind, str(number).encode()) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_in_both_directions(number: float) -> None:
    data = values.to_bytes(values.FLOAT, number)
    assert values.from_bytes(values.FLOAT, data) == number
    assert values.from_text(values.FLOAT, repr(number).encode()) == number


@given(st.text(max_size=50), st.binary(max_size=50))
def test_strings_and_opaque_values(text: str, data: bytes) -> None:
    assert values.from_bytes(values.STRING, values.to_bytes(values.STRING, text)) == text
    coded = values.from_bytes(values.OPAQUE, data)
    assert isinstance(coded, str)
    assert values.from_text(values.OPAQUE, coded.encode()) == coded == values.base64_of(data)


def test_values_of_each_type() -> None:
    for kind, value, data in (
        (values.BOOLEAN, True, b"\1"), (values.BOOLEAN, "false", b"\0"), (values.BOOLEAN, 0, b"\0"),
        (values.OBJLNK, "3:258", b"\0\3\1\2"), (values.INTEGER, 200, b"\0\xc8"), (values.INTEGER, 200.0, b"\0\xc8"),
        (values.UNSIGNED, "200", b"\xc8"), (values.FLOAT, "1.5", b"?\xc0\0\0"), (values.STRING, 5, b"5"),
        (values.STRING, True, b"true"), (values.OPAQUE, "ab", b"ab"),
    ):  # fmt: skip
        assert values.to_bytes(kind, value) == data
    for kind, data, value in (
        (values.BOOLEAN, b"\1", True), (values.OBJLNK, b"\0\3\1\2", "3:258"), (values.UNSIGNED, b"\xc8", 200),
        (values.INTEGER, b"\xc8", -56), ("", b"\xff", "/w=="), (values.FLOAT, b"\x7f\x80\0\0", "inf"),
    ):  # fmt: skip
        assert values.from_bytes(kind, data) == value
    for kind, text, value in (
        (values.BOOLEAN, b"1", True), (values.BOOLEAN, b"false", False), (values.OBJLNK, b"3:258", "3:258"),
        ("", b"EMQ", "EMQ"), (values.STRING, b"", ""),
    ):  # fmt: skip
        assert values.from_text(kind, text) == value


@pytest.mark.parametrize(
    "kind, value",
    [
        (values.INTEGER, 1 << 63), (values.INTEGER, "1.5"), (values.INTEGER, 1.5), (values.INTEGER, True),
        (values.INTEGER, None), (values.INTEGER, "9" * 400), (values.UNSIGNED, -1), (values.FLOAT, "nan"),
        (values.FLOAT, "1e999"), (values.FLOAT, True), (values.BOOLEAN, "yes"), (values.BOOLEAN, None),
        (values.OPAQUE, 5), (values.STRING, None), (values.STRING, []), (values.STRING, "\ud800"),
        (values.OBJLNK, "3"), (values.OBJLNK, "3:70000"), (values.OBJLNK, 3), ("Number", 3), ("", "x"),
    ],
)  # fmt: skip
def test_values_that_are_refused(kind: str, value: object) -> None:
    with pytest.raises(values.BadValue):
        values.to_bytes(kind, value)


@pytest.mark.parametrize(
    "kind, data",
    [
        (values.INTEGER, b"123"), (values.INTEGER, b""), (values.UNSIGNED, b"123"), (values.FLOAT, b"12"),
        (values.BOOLEAN, b"\2"), (values.STRING, b"\xff"), (values.OBJLNK, b"12"),
    ],
)  # fmt: skip
def test_bytes_that_are_refused(kind: str, data: bytes) -> None:
    with pytest.raises(values.BadValue):
        values.from_bytes(kind, data)


@pytest.mark.parametrize(
    "kind, data",
    [
        (values.INTEGER, b""), (values.INTEGER, b"1.5"), (values.TIME, b"now"), (values.FLOAT, b"x"),
        (values.FLOAT, b"inf"), (values.BOOLEAN, b"2"), (values.OPAQUE, b"#"), (values.OBJLNK, b"3"),
        (values.STRING, b"\xff"),
    ],
)  # fmt: skip
def test_texts_that_are_refused(kind: str, data: bytes) -> None:
    with pytest.raises(values.BadValue):
        values.from_text(kind, data)


def test_paths() -> None:
    assert paths.parse("/3/0/1") == paths.parse("3/0/1") == (3, 0, 1)
    assert paths.parse("/") == () and paths.text_of((3, 0)) == "/3/0"
    for bad in ("/3//1", "/3/x", "/3/-1", "/65536", "/1/2/3/4/5", "/١", "/3/0/1?x"):
        with pytest.raises(paths.BadPath):
            paths.parse(bad)


def test_json_of_lwm2m() -> None:
    elements = b'{"n":"0","sv":"OMA"},{"n":"6/0","v":1.0},{"n":"22/0","ov":"3:0"},{"n":"13","t":-5,"v":9}'
    data = b'{"bn":"/3/0/","bt":100,"e":[' + elements + b"]}"
    assert content.to_content((3, 0), content.JSON, data, OBJECTS) == [
        {"path": "/3/0/0", "value": "OMA", "timestamp": 100},
        {"path": "/3/0/6/0", "value": 1, "timestamp": 100},
        {"path": "/3/0/22/0", "value": "3:0", "timestamp": 100},
        {"path": "/3/0/13", "value": 9, "timestamp": 95},
    ]
    relative = b'{"e":[{"n":"6","bv":true,"unknown":[1]}]}'
    assert content.to_content((1, 0), 1543, relative, OBJECTS) == [{"path": "/1/0/6", "value": True}]
    rooted = b'{"bn":"/lwm2m/1/0/6","e":[{"v":1}]}'
    assert content.to_content((1, 0, 6), content.JSON, rooted, OBJECTS, "/lwm2m") == [{"path": "/1/0/6", "value": True}]


def test_content_of_each_form() -> None:
    def of(path: tuple[int, ...], number: int | None, data: bytes) -> object:
        return content.to_content(path, number, data, OBJECTS)

    assert of((3, 0, 0), None, b"EMQ") == [{"path": "/3/0/0", "value": "EMQ"}]
    assert of((3, 0, 9), content.TEXT, b"87") == [{"path": "/3/0/9", "value": 87}]
    assert of((5, 0, 0), content.OCTET_STREAM, b"\xff") == [{"path": "/5/0/0", "value": "/w=="}]
    assert of((3, 0, 9), content.TLV, b"\xc1\x09\x57") == [{"path": "/3/0/9", "value": 87}]
    assert of((3,), content.TLV, b"\x03\x00\xc1\x09\x57") == [{"path": "/3/0/9", "value": 87}]
    assert of((3,), content.TLV, b"\xc1\x09\x57") == [{"path": "/3/0/9", "value": 87}]
    assert of((3, 0, 6, 1), content.TLV, b"\x41\x01\x05") == [{"path": "/3/0/6/1", "value": 5}]
    assert of((9999, 0, 1), content.TLV, b"\xc1\x01\xff") == [{"path": "/9999/0/1", "value": "/w=="}]
    assert of((9999, 0, 1), content.TEXT, b"x") == [{"path": "/9999/0/1", "value": "x"}]


@pytest.mark.parametrize(
    "path, number, data, text",
    [
        ((3, 0), content.TEXT, b"x", "not a resource"),
        ((3,), content.OCTET_STREAM, b"x", "not a resource"),
        ((3, 0, 9), content.TEXT, b"x", "not an integer"),
        ((3, 0, 9), content.TLV, b"\xc3\x09123", "/3/0/9: an integer of 3 bytes"),
        ((3, 0), content.TLV, b"\x41\x00\x01", "path is not a resource"),
        ((3, 0), content.TLV, b"\xff", "incomplete"),
        ((3, 0), content.LINK_FORMAT, b"</3>", "content format 40"),
        ((3, 0), content.JSON, b"{}", "not valid LwM2M JSON"),
        ((3, 0), content.JSON, b'{"e":[{"n":"x","v":1}]}', "not a number"),
        ((3, 0), content.JSON, b'{"e":[{"z":' + b"[" * 100_000, "not valid LwM2M JSON"),
        ((3, 0), content.JSON, b'{"e":[{"v":1e999}]}', "not valid LwM2M JSON"),
    ],
)
def test_content_that_cannot_be_translated(path: tuple[int, ...], number: int, data: bytes, text: str) -> None:
    with pytest.raises(content.BadContent, match=text):
        content.to_content(path, number, data, OBJECTS)


@given(st.sampled_from([(3,), (3, 0), (3, 0, 6), (5, 0, 0)]), st.sampled_from([0, 42, 11542, 11543]), st.binary())
def test_any_answer_is_content_or_an_error(path: tuple[int, ...], number: int, data: bytes) -> None:
    try:
        rows = content.to_content(path, number, data, OBJECTS)
    except content.BadContent:
        return
    assert all(row["path"].startswith("/") for row in rows)


def test_links() -> None:
    assert links.split('</3/0>;a="x,y",</3/1>, </4>,') == ['</3/0>;a="x,y"', "</3/1>", "</4>"]
    first, second = links.parse('</>;rt="oma.lwm2m";ct=11543,</3/0>;obs')
    assert (first.target, first.attributes) == ("/", {"rt": "oma.lwm2m", "ct": "11543"})
    assert (second.target, second.attributes) == ("/3/0", {"obs": ""})
    assert links.parse("") == []
    for bad in ("3/0", "</3", "</3>" + ";a" * 40, ",".join(["</1>"] * 2000)):
        with pytest.raises(links.BadLinks):
            links.parse(bad)


@given(st.text(max_size=200))
def test_any_text_is_links_or_an_error(text: str) -> None:
    try:
        links.parse(text)
    except links.BadLinks:
        pass


def test_shipped_definitions() -> None:
    assert [OBJECTS.name_of(f"/{number}/0") for number in (0, 1, 2, 3, 5, 6, 7)] == [
        "LWM2M Security", "LwM2M Server", "LwM2M Access Control", "Device", "Firmware Update", "Location",
        "Connectivity Statistics",
    ]  # fmt: skip
    assert OBJECTS.name_of("/4/0") == "/4/0" and OBJECTS.name_of("/x") == "/x"
    [device] = objects.parse((objects.SHIPPED / "3.xml").read_bytes())
    assert not device.multiple and len(device.resources) == 23
    reboot = OBJECTS.resource((3, 0, 4))
    assert reboot is not None and (reboot.name, reboot.operations, reboot.kind) == ("Reboot", "E", "")
    assert OBJECTS.kind((3, 0, 22, 1)) == values.OBJLNK and OBJECTS.kind((3, 0)) == ""


XML = """<?xml version="1.0" encoding="utf-8"?>
<LWM2M><Object ObjectType="MODefinition"><Name>IPSO Temperature</Name><Description1>A &amp; B</Description1>
<ObjectID>3303</ObjectID><MultipleInstances>Multiple</MultipleInstances><Resources>
<Item ID="5700"><Name>Sensor Value</Name><Operations>R</Operations><MultipleInstances>Single</MultipleInstances>
<Type>Float</Type></Item><Item ID="5605"><Name>Reset</Name><Operations>E</Operations><Type></Type></Item>
</Resources></Object></LWM2M>"""


def test_definitions_of_a_directory(tmp_path: FilePath) -> None:
    (tmp_path / "3303.xml").write_text(XML)
    (tmp_path / "README").write_text("no XML")
    found = objects.load(str(tmp_path))
    assert len(found) == 8 and found.kind((3303, 0, 5700)) == values.FLOAT
    assert found.name_of("/3303/1") == "IPSO Temperature"


ENTITIES = '<!DOCTYPE a [<!ENTITY b "cccccccccc"><!ENTITY d "&b;&b;&b;&b;&b;&b;&b;&b;">]>'


@pytest.mark.parametrize(
    "text, message",
    [
        (ENTITIES + XML.partition("?>")[2].replace("IPSO", "&d;"), "DOCTYPE"),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><LWM2M/>', "DOCTYPE"),
        ("<LWM2M/>", "no element ObjectDefinition"),
        ("<LWM2M>", "not XML"),
        ("", "not XML"),
        ("<a>" * 100, "nested elements"),
        (XML.replace("3303", "70000"), "not a number from 0"),
        (XML.replace("Float", "Complex"), "resource 5700: 'Complex' is not a type"),
        (XML + " " * objects.MAX_FILE_BYTES, "larger than"),
    ],
)
def test_definitions_that_are_refused(tmp_path: FilePath, text: str, message: str) -> None:
    (tmp_path / "bad.XML").write_text(text)
    with pytest.raises(objects.BadObjects, match=message) as raised:
        objects.load(str(tmp_path))
    assert "bad.XML" in str(raised.value)


def test_a_directory_that_does_not_exist(tmp_path: FilePath) -> None:
    with pytest.raises(objects.BadObjects, match="No such file"):
        objects.load(str(tmp_path / "none"))


def test_numbers_that_json_has_not() -> None:
    assert math.isinf(float(values.from_bytes(values.FLOAT, b"\xff\x80\0\0")))
