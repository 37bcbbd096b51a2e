"""Protocol Buffers: a schema is the text of one .proto file, which protoc compiles when the schema is created.

A message becomes a map with the names of its fields. Enumeration values become their names, and bytes become strings. A
field that is not set is left out if its presence is tracked; otherwise it has its default."""

from __future__ import annotations

import asyncio
import math
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from ..functions.budget import Budget
from ..functions.values import restore
from .codec import BYTES_PER_STEP, MissingLibrary, SchemaError

NAME: Final = "protobuf"
_FILE: Final = "schema.proto"
_COMPILE_TIME: Final = 20.0
"""Maximum seconds that protoc may take."""
_ERRORS: Final = 500


async def compile_text(text: str) -> bytes:
    """Return the descriptors of a .proto file and of the files that it imports. Raises SchemaError."""
    try:
        import grpc_tools
    except ImportError as error:
        raise MissingLibrary(NAME) from error
    standard = Path(next(iter(grpc_tools.__path__))) / "_proto"
    with tempfile.TemporaryDirectory(prefix="taipan-protoc-") as directory:
        source, result = Path(directory) / _FILE, Path(directory) / "descriptors"
        source.write_text(text, encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "grpc_tools.protoc", f"-I{directory}", f"-I{standard}"),
            *("--include_imports", f"--descriptor_set_out={result}", str(source)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_COMPILE_TIME):
                _, errors = await process.communicate()
        except TimeoutError:
            raise SchemaError(f"protoc did not end within {_COMPILE_TIME:g} seconds") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode or not result.exists():
            places = [line.partition(f"{_FILE}:")[2] for line in errors.decode("utf-8", "replace").splitlines()]
            told = "; ".join(f"line {place}" for place in places if place and "warning:" not in place)[:_ERRORS]
            raise SchemaError(f"not a .proto file: {told or 'protoc failed'}")
        return result.read_bytes()


class ProtobufSchema:
    """The message types of one file."""

    def __init__(self, descriptors: bytes) -> None:
        """Raises SchemaError."""
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
        except ImportError as error:
            raise MissingLibrary(NAME) from error
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        self._wrong = message.Error
        last = pool.FindFileByName(files.file[-1].name)
        self._types: dict[str, Any] = {}
        for name, descriptor in last.message_types_by_name.items():
            self._types[name] = self._types[descriptor.full_name] = message_factory.GetMessageClass(descriptor)
            self._add_nested(descriptor, name, message_factory.GetMessageClass)
        if not self._types:
            raise SchemaError("the .proto file has no message")

    def _add_nested(self, descriptor: Any, name: str, class_of: Any) -> None:
        for nested in descriptor.nested_types:
            if not nested.GetOptions().map_entry:
                self._types[f"{name}.{nested.name}"] = self._types[nested.full_name] = class_of(nested)
                self._add_nested(nested, f"{name}.{nested.name}", class_of)

    def _type(self, message: str | None) -> Any:
        if message is None:
            raise ValueError("a Protobuf schema needs the name of the message type as third argument")
        found = self._types.get(message)
        if found is None:
            raise ValueError(f"the schema has no message type {message[:64]}")
        return found

    def decode(self, data: bytes, message: str | None, budget: Budget) -> object:
        budget.step(len(data) // BYTES_PER_STEP)
        try:
            decoded = self._type(message).FromString(data)
        except self._wrong as error:
            raise ValueError("the data does not match the schema") from error
        return _to_map(decoded, budget)

    def encode(self, value: object, message: str | None, budget: Budget) -> bytes:
        built = self._type(message)()
        _fill(built, value, message or "", budget)
        try:
            data: bytes = built.SerializeToString(deterministic=True)
        except self._wrong as error:
            raise ValueError(str(error)[:200]) from error
        return data


def _to_map(message: Any, budget: Budget) -> dict[str, object]:
    fields = message.DESCRIPTOR.fields
    budget.step(1 + len(fields))
    found: dict[str, object] = {}
    for field in fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            if _is_map(field):
                of = field.message_type.fields_by_name["value"]
                found[field.name] = {str(key): _to_value(of, value[key], budget) for key in value}
                budget.step(len(value))
            else:
                budget.step(len(value))
                found[field.name] = [_to_value(field, each, budget) for each in value]
        elif not field.has_presence or message.HasField(field.name):
            found[field.name] = _to_value(field, value, budget)
    return found


def _to_value(field: Any, value: Any, budget: Budget) -> object:
    if field.type in (field.TYPE_MESSAGE, field.TYPE_GROUP):
        return _to_map(value, budget)
    if field.type == field.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return int(value) if known is None else known.name
    if field.type == field.TYPE_BYTES:
        return restore(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _fill(message: Any, value: object, where: str, budget: Budget) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected a map")
    budget.step(1 + len(value))
    fields = message.DESCRIPTOR.fields_by_name
    for name, given in value.items():
        field = fields.get(name)
        if field is None:
            raise ValueError(f"{where} has no field {name[:64]}")
        if given is None:
            continue
        place = f"{where}.{name}"
        if field.is_repeated and _is_map(field):
            _fill_map(getattr(message, name), field, given, place, budget)
        elif field.is_repeated:
            if not isinstance(given, list):
                raise ValueError(f"{place}: expected a list")
            budget.step(len(given))
            target = getattr(message, name)
            for each in given:
                if field.message_type is not None:
                    _fill(target.add(), each, place, budget)
                else:
                    _assign(target.append, _from_value(field, each, place), place)
        elif field.message_type is not None:
            child = getattr(message, name)
            child.SetInParent()
            _fill(child, given, place, budget)
        else:
            _assign(lambda each, name=name: setattr(message, name, each), _from_value(field, given, place), place)


def _fill_map(target: Any, field: Any, given: object, place: str, budget: Budget) -> None:
    if not isinstance(given, dict):
        raise ValueError(f"{place}: expected a map")
    budget.step(len(given))
    key_field, of = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
    for text, each in given.items():
        key = _map_key(key_field, text, place)
        if of.message_type is None:
            _assign(lambda made, key=key: target.__setitem__(key, made), _from_value(of, each, place), place)
            continue
        try:
            child = target[key]
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{place}: {error}") from error
        _fill(child, each, place, budget)


def _map_key(field: Any, text: str, place: str) -> object:
    if field.type == field.TYPE_STRING:
        return text
    if field.type == field.TYPE_BOOL:
        if text in ("true", "false"):
            return text == "true"
    elif text.removeprefix("-").isdecimal():
        return int(text)
    raise ValueError(f"{place}: the key {text[:64]} has the wrong type")


def _from_value(field: Any, value: Any, place: str) -> object:
    kind = type(value)
    if field.type == field.TYPE_BYTES and kind is str:
        return value.encode()
    if field.type == field.TYPE_ENUM and kind is str:
        known = field.enum_type.values_by_name.get(value)
        if known is None:
            raise ValueError(f"{place}: there is no value {value[:64]}")
        return known.number
    if kind is bool and field.type != field.TYPE_BOOL:
        raise ValueError(f"{place}: a boolean is not valid here")
    return value


def _assign(put: Any, value: object, place: str) -> None:
    try:
        put(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{place}: {str(error)[:200]}") from error
