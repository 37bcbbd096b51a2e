"""The plot is well-formed, and its bars reach where they should."""

import re
from xml.etree import ElementTree

from tools.bench.plot import LEFT, Bar, draw, ticks

SVG = "{http://www.w3.org/2000/svg}"


def test_ticks_enclose_the_values() -> None:
    assert ticks(0.3, 12) == [0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0]
    assert ticks(1, 10) == [1.0, 2.0, 5.0, 10.0]


def test_a_bar_begins_or_ends_at_one() -> None:
    root = ElementTree.fromstring(draw("a < b", [Bar("ahead", 4, {"nats": 2.0}, 5), Bar("behind", 0.25, {}, None)]))
    assert root.find(f"{SVG}title") is not None and root.find(f"{SVG}title").text == "a < b"  # type: ignore[union-attr]
    ahead, behind = [each for each in root.iter(f"{SVG}rect") if each.find(f"{SVG}title") is not None]
    one = float(ahead.attrib["x"])
    assert abs(float(behind.attrib["x"]) + float(behind.attrib["width"]) - one) < 0.2
    assert abs(float(behind.attrib["width"]) - float(ahead.attrib["width"])) < 0.2
    dot = next(each for each in root.iter(f"{SVG}circle") if each.find(f"{SVG}title") is not None)
    assert abs(float(dot.attrib["cx"]) - one - float(ahead.attrib["width"]) / 2) < 0.2


def test_what_lies_beyond_the_axis_is_drawn_at_its_edge() -> None:
    root = ElementTree.fromstring(draw("t", [Bar("far", 0.0001, {"amqtt": 0.00001}, None)]))
    dot = next(each for each in root.iter(f"{SVG}circle") if each.find(f"{SVG}title") is not None)
    assert float(dot.attrib["cx"]) == LEFT


def test_nothing_measured_is_an_empty_plot() -> None:
    text = draw("none", [])
    assert ElementTree.fromstring(text).tag == f"{SVG}svg"
    assert not re.search("nan|inf", text)
