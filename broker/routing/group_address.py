"""GroupAddress: a message that one node has given to another one for a member of a Shared Subscription."""

from typing import NamedTuple

_BETWEEN = "\0"
"""No filter and no key of a node contains U+0000."""


class GroupAddress(NamedTuple):
    """``filter``: the whole ``$share/...`` filter. ``hops``: keys of the nodes that had no member for the message, in
    the order in which they were tried."""

    filter: str
    hops: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the address as ``Delivery.group``, the store and the links hold it: without hops, only the filter."""
        return _BETWEEN.join((self.filter, *self.hops))

    @classmethod
    def parse(cls, text: str) -> "GroupAddress":
        """Return the address that ``text`` is the form of."""
        filter, *hops = text.split(_BETWEEN)
        return cls(filter, tuple(hops))
