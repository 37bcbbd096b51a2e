"""Trie: Topic Filter -> value, searched by Topic Name."""

from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

from ..mqtt.topics import has_wildcard

T = TypeVar("T")

# A node is a plain dict, because an object for each would use four times the memory and cause most of the garbage
# collection. The key ``level`` leads to the node below. The key ``level + "/"``, which cannot be a level, contains the
# value of the filter that ends there, so that a leaf needs no node of its own.
_Node = dict[str, Any]

_ANY: Final = "+"
_ANY_END: Final = "+/"
_REST_END: Final = "#/"


class Trie(Generic[T]):
    """Values by Topic Filter. Filters without wildcards are in one dict, the others in nested dicts by level.

    Filters and topics must be valid (``mqtt.topics``); they are compared exactly, without normalisation [MQTT-4.7.3-4].
    No method recurses, so any number of levels is possible. ``None`` cannot be a value."""

    __slots__ = ("_exact", "_root", "_wildcards")

    def __init__(self) -> None:
        self._exact: dict[str, T] = {}
        self._root: _Node = {}
        self._wildcards = 0

    def __len__(self) -> int:
        return len(self._exact) + self._wildcards

    def get(self, topic_filter: str) -> T | None:
        """Return the value of exactly this filter."""
        if not has_wildcard(topic_filter):
            return self._exact.get(topic_filter)
        levels = topic_filter.split("/")
        last = levels.pop()
        node = self._root
        for level in levels:
            below: _Node | None = node.get(level)
            if below is None:
                return None
            node = below
        value: T | None = node.get(last + "/")
        return value

    def put(self, topic_filter: str, value: T) -> None:
        """Set the value of a filter, replacing the existing one."""
        if not has_wildcard(topic_filter):
            self._exact[topic_filter] = value
            return
        levels = topic_filter.split("/")
        key = levels.pop() + "/"
        node = self._root
        for level in levels:
            below: _Node | None = node.get(level)
            if below is None:
                below = node[level] = {}
            node = below
        if key not in node:
            self._wildcards += 1
        node[key] = value

    def remove(self, topic_filter: str) -> T | None:
        """Remove a filter, with the nodes that only it needed; return its value, ``None`` if it did not exist."""
        if not has_wildcard(topic_filter):
            return self._exact.pop(topic_filter, None)
        levels = topic_filter.split("/")
        key = levels.pop() + "/"
        node = self._root
        path: list[_Node] = []
        for level in levels:
            below: _Node | None = node.get(level)
            if below is None:
                return None
            path.append(node)
            node = below
        value: T | None = node.pop(key, None)
        if value is None:
            return None
        self._wildcards -= 1
        while not node and path:
            node = path.pop()
            del node[levels[len(path)]]
        return value

    def match(self, topic: str) -> list[T]:
        """Return the values of all filters that match a Topic Name: that of the exact filter first, then from broad to
        narrow [MQTT-3.3.2-3].

        This takes one step for each *existing* prefix that fits the topic, for any number of filters."""
        found: list[T] = []
        value: Any = self._exact.get(topic)
        if value is not None:
            found.append(value)
        if not self._root:
            return found
        levels = topic.split("/")
        last = levels.pop()
        node: Any
        nodes: list[_Node] = [self._root]
        if topic.startswith("$"):
            # A wildcard in the first level does not match a Topic Name beginning with $ [MQTT-4.7.2-1].
            node = self._root.get(levels[0] if levels else last)
            if node is None:
                return found
            if not levels:
                value = node.get(_REST_END)
                if value is not None:
                    found.append(value)
                return found
            del levels[0]
            nodes[0] = node
        for level in levels:
            below: list[_Node] = []
            for node in nodes:
                value = node.get(_REST_END)
                if value is not None:
                    found.append(value)
                value = node.get(level)
                if value is not None:
                    below.append(value)
                value = node.get(_ANY)
                if value is not None:
                    below.append(value)
            if not below:
                return found
            nodes = below
        key = last + "/"
        for node in nodes:
            value = node.get(_REST_END)
            if value is not None:
                found.append(value)
            value = node.get(key)
            if value is not None:
                found.append(value)
            value = node.get(_ANY_END)
            if value is not None:
                found.append(value)
            # "#" includes its parent level: a/# matches a.
            value = node.get(last)
            if value is not None:
                value = value.get(_REST_END)
                if value is not None:
                    found.append(value)
            value = node.get(_ANY)
            if value is not None:
                value = value.get(_REST_END)
                if value is not None:
                    found.append(value)
        return found

    def filters(self) -> Iterator[str]:
        """Iterate over every filter once, exact ones first. Filters that are added or removed during the iteration may
        or may not be included."""
        yield from list(self._exact)
        path: list[str] = []
        walking: list[tuple[_Node, Iterator[str]]] = [(self._root, iter(list(self._root)))]
        while walking:
            node, keys = walking[-1]
            for key in keys:
                value = node.get(key)
                if value is None:
                    continue
                path.append(key)
                if key.endswith("/"):
                    yield "/".join(path)[:-1]
                    path.pop()
                else:
                    walking.append((value, iter(list(value))))
                    break
            else:
                walking.pop()
                if path:
                    path.pop()
