"""Definitions of objects: the names, types and operations of their resources, which the OMA and others publish in XML.

The package contains the definitions of objects 0, 1, 2, 3, 5, 6 and 7 in ``objects``; ``xml_dir`` adds others."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path as FilePath
from typing import Final
from xml.parsers import expat

from .paths import RESOURCE, BadPath, Path, identifier
from .paths import parse as parse_path
from .values import TYPES

MAX_FILE_BYTES: Final = 1_048_576
MAX_FILES: Final = 1024
MAX_DEPTH: Final = 12
MAX_TEXT: Final = 200
"""Characters of a name."""

SHIPPED: Final = FilePath(__file__).parent / "objects"


class BadObjects(ValueError):
    """A file does not define objects; the message says which and why."""


@dataclass(frozen=True, slots=True)
class ResourceDefinition:
    """``kind``: the type of its value, empty for one that is executed; ``operations``: R, W, RW, E or none."""

    id: int
    name: str
    operations: str
    kind: str
    multiple: bool


@dataclass(frozen=True, slots=True)
class ObjectDefinition:
    """An object with its resources by identifier."""

    id: int
    name: str
    multiple: bool
    resources: dict[int, ResourceDefinition]


class Objects:
    """All known objects."""

    def __init__(self, objects: dict[int, ObjectDefinition]) -> None:
        self._objects = objects

    def __len__(self) -> int:
        return len(self._objects)

    def resource(self, path: Path) -> ResourceDefinition | None:
        """Return the definition of the resource at a path, which may also be the path of an instance of the
        resource."""
        found = self._objects.get(path[0]) if len(path) >= RESOURCE else None
        return None if found is None else found.resources.get(path[2])

    def kind(self, path: Path) -> str:
        """Return the type of the value at a path; empty: it is not known."""
        found = self.resource(path)
        return "" if found is None else found.kind

    def name_of(self, text: str) -> str:
        """Return the name of the object of a path; without a definition, the path as it is."""
        try:
            path = parse_path(text)
        except BadPath:
            return text
        found = self._objects.get(path[0]) if path else None
        return text if found is None else found.name


def load(directory: str | None) -> Objects:
    """Return the shipped objects and those of the XML files in ``directory``, which replace the shipped ones. Raises
    BadObjects."""
    objects = dict(_shipped())
    if directory is not None:
        objects |= _in(FilePath(directory))
    return Objects(objects)


@cache
def _shipped() -> dict[int, ObjectDefinition]:
    return _in(SHIPPED)


def _in(directory: FilePath) -> dict[int, ObjectDefinition]:
    try:
        files = sorted(each for each in directory.iterdir() if each.suffix.lower() == ".xml")
    except OSError as error:
        raise BadObjects(f"{directory}: {error.strerror}") from None
    if len(files) > MAX_FILES:
        raise BadObjects(f"{directory}: more than {MAX_FILES} files")
    return {each.id: each for file in files for each in _read(file)}


def _read(file: FilePath) -> list[ObjectDefinition]:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadObjects(f"{file}: {error.strerror}") from None
    try:
        return parse(data)
    except BadObjects as error:
        raise BadObjects(f"{file}: {error}") from None


def parse(data: bytes) -> list[ObjectDefinition]:
    """Return the objects of an XML file. Raises BadObjects."""
    if len(data) > MAX_FILE_BYTES:
        raise BadObjects(f"larger than {MAX_FILE_BYTES} bytes")
    root = _Tree().read(data)
    found = [_object(each) for each in root.all("Object")]
    if not found:
        raise BadObjects("no element ObjectDefinition")
    return found


def _object(element: "_Element") -> ObjectDefinition:
    number = _identifier(element.text("ObjectID"))
    resources = [_resource(item) for group in element.all("Resources") for item in group.all("Item")]
    multiple = element.text("MultipleInstances") == "Multiple"
    return ObjectDefinition(number, _name(element), multiple, {each.id: each for each in resources})


def _resource(item: "_Element") -> ResourceDefinition:
    number = _identifier(item.attributes.get("ID", ""))
    kind = item.text("Type")
    if kind.title() in TYPES:
        kind = kind.title()
    elif kind not in ("", "None", "none"):
        raise BadObjects(f"resource {number}: {kind[:30]!r} is not a type")
    else:
        kind = ""
    multiple = item.text("MultipleInstances") == "Multiple"
    return ResourceDefinition(number, _name(item), item.text("Operations").upper(), kind, multiple)


def _name(element: "_Element") -> str:
    return element.text("Name")[:MAX_TEXT]


def _identifier(text: str) -> int:
    try:
        return identifier(text)
    except BadPath as error:
        raise BadObjects(str(error)) from None


class _Element:
    """An element of the tree. Its text does not include that of the elements in it."""

    __slots__ = ("attributes", "inner", "name", "words")

    def __init__(self, name: str, attributes: dict[str, str]) -> None:
        self.name = name
        self.attributes = attributes
        self.words: list[str] = []
        self.inner: list[_Element] = []

    def all(self, name: str) -> list["_Element"]:
        """Return the elements of this name in it."""
        return [each for each in self.inner if each.name == name]

    def text(self, name: str) -> str:
        """Return the text of the first inner element with this name; empty: there is none."""
        found = self.all(name)
        return "".join(found[0].words).strip() if found else ""


class _Tree:
    """Reads XML, and rejects declarations of types: these could have entities that expand without end, or read
    files."""

    def __init__(self) -> None:
        self._root = _Element("", {})
        self._open = [self._root]

    def read(self, data: bytes) -> _Element:
        """Return the root element. Raises BadObjects."""
        parser = expat.ParserCreate()
        parser.StartDoctypeDeclHandler = self._doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        try:
            parser.Parse(data, True)
        except expat.ExpatError as error:
            raise BadObjects(f"not XML: {error}") from None
        except LookupError as error:
            raise BadObjects(f"not XML: {error}") from None
        return self._root.inner[0]

    def _doctype(self, name: str, *_: object) -> None:
        raise BadObjects("a DOCTYPE is not accepted, because of its entities")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._open) > MAX_DEPTH:
            raise BadObjects(f"more than {MAX_DEPTH} nested elements")
        element = _Element(name, attributes)
        self._open[-1].inner.append(element)
        self._open.append(element)

    def _end(self, name: str) -> None:
        self._open.pop()

    def _characters(self, text: str) -> None:
        self._open[-1].words.append(text)
