"""FilterIndex: Topic Filter -> value, searched by Topic Name with a few lookups for any number of filters."""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from ..mqtt.topics import has_wildcard
from .trie import Trie

T = TypeVar("T")

MAX_SHAPES: Final = 16  # each shape that fits a topic costs one lookup, so their number is limited


class _Shape(Generic[T]):
    """The Topic Filters with wildcards in the same places: ``+`` at ``pluses`` of ``depth`` levels, followed by ``#``
    if it is ``open_ended``. The filters are the keys of ``values``."""

    __slots__ = ("depth", "leading", "open_ended", "pluses", "values")

    def __init__(self, name: str) -> None:
        levels = name.split("/")
        self.open_ended = levels[-1] == "#"
        if self.open_ended:
            levels.pop()
        self.depth = len(levels)
        self.pluses = [place for place, level in enumerate(levels) if level == "+"]
        self.leading = not levels or levels[0] == "+"  # begins with a wildcard
        self.values: dict[str, T] = {}

    def filter_for(self, topic: str, levels: list[str]) -> str:
        """Return the only filter of this shape that matches a topic with at least ``depth`` levels."""
        if not self.pluses and self.depth == len(levels):
            return topic + "/#"
        wanted = levels[: self.depth]
        for place in self.pluses:
            wanted[place] = "+"
        if self.open_ended:
            wanted.append("#")
        return "/".join(wanted)


class FilterIndex(Generic[T]):
    """Values by Topic Filter, as in a ``Trie``, but for very many filters of few shapes, such as all ``site/+/state``.

    At most one filter of each shape matches a topic, and its text follows from the topic. So one lookup in one dict is
    enough, whereas a trie would visit an object for each level, and these objects do not fit into the processor's
    cache. When ``max_shapes`` shapes exist, filters of further shapes go to a ``Trie`` and stay there until they are
    removed."""

    __slots__ = ("_exact", "_flat", "_max_shapes", "_others", "_shapes", "system")

    def __init__(self, max_shapes: int = MAX_SHAPES) -> None:
        self._max_shapes = max_shapes
        self._exact: dict[str, T] = {}
        self._shapes: dict[str, _Shape[T]] = {}
        self._flat: list[_Shape[T]] = []  # the same shapes, for iteration
        self._others: Trie[T] = Trie()
        self.system = 0  # the filters that begin with $, because only these match such a topic

    def __len__(self) -> int:
        count = len(self._exact) + len(self._others)
        for shape in self._flat:
            count += len(shape.values)
        return count

    def get(self, topic_filter: str) -> T | None:
        """Return the value of exactly this filter."""
        if not has_wildcard(topic_filter):
            return self._exact.get(topic_filter)
        shape = self._shapes.get(_shape_of(topic_filter))
        value = None if shape is None else shape.values.get(topic_filter)
        return self._others.get(topic_filter) if value is None else value

    def put(self, topic_filter: str, value: T) -> None:
        """Set the value of a filter, replacing the existing one."""
        if topic_filter.startswith("$") and self.get(topic_filter) is None:
            self.system += 1
        if not has_wildcard(topic_filter):
            self._exact[topic_filter] = value
            return
        name = _shape_of(topic_filter)
        shape = self._shapes.get(name)
        if len(self._others) and self._others.get(topic_filter) is not None:
            self._others.put(topic_filter, value)
        elif shape is not None:
            shape.values[topic_filter] = value
        elif len(self._shapes) < self._max_shapes:
            shape = self._shapes[name] = _Shape(name)
            shape.values[topic_filter] = value
            self._flat.append(shape)
        else:
            self._others.put(topic_filter, value)

    def remove(self, topic_filter: str) -> T | None:
        """Remove a filter; return its value, ``None`` if it did not exist."""
        value = self._remove(topic_filter)
        if value is not None and topic_filter.startswith("$"):
            self.system -= 1
        return value

    def _remove(self, topic_filter: str) -> T | None:
        if not has_wildcard(topic_filter):
            return self._exact.pop(topic_filter, None)
        name = _shape_of(topic_filter)
        shape = self._shapes.get(name)
        value = None if shape is None else shape.values.pop(topic_filter, None)
        if shape is None or value is None:
            return self._others.remove(topic_filter)
        if not shape.values:
            del self._shapes[name]
            self._flat.remove(shape)
        return value

    def match(self, topic: str) -> list[T]:
        """Return the values of all filters that match a Topic Name, that of the exact filter first [MQTT-3.3.2-3]."""
        found: list[T] = []
        value = self._exact.get(topic)
        if value is not None:
            found.append(value)
        if self._flat:
            levels = topic.split("/")
            depth = len(levels)
            # A wildcard in the first level does not match a Topic Name beginning with $ [MQTT-4.7.2-1].
            hides = topic.startswith("$")
            for shape in self._flat:
                # "#" includes its parent level: a/# matches a.
                if (shape.depth == depth or (shape.open_ended and shape.depth < depth)) and not (
                    hides and shape.leading
                ):
                    value = shape.values.get(shape.filter_for(topic, levels))
                    if value is not None:
                        found.append(value)
        if len(self._others):
            found.extend(self._others.match(topic))
        return found

    def filters(self) -> Iterator[str]:
        """Iterate over every filter once, exact ones first. Filters that are added or removed during the iteration may
        or may not be included."""
        yield from list(self._exact)
        for shape in list(self._flat):
            yield from list(shape.values)
        yield from self._others.filters()


def _shape_of(topic_filter: str) -> str:
    """Return a filter without its ordinary levels: ``//+/#`` for ``a/b/+/#``."""
    return "/".join([level if level == "+" or level == "#" else "" for level in topic_filter.split("/")])
