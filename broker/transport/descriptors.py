"""Descriptors: how many file descriptors of the process connections may use, so that the node keeps some for itself.

The system assigns the lowest free number. So a socket with number N shows that N descriptors are in use, whatever uses
them, and nothing has to be counted."""

import resource
import sys
from typing import Final, NamedTuple

SETTING: Final = "LimitNOFILE, ulimit -n"
_FOR_NODE: Final = 64
_FOR_OPERATORS: Final = 512


class Descriptors(NamedTuple):
    """``limit``: the limit of the process. Clients do not get sockets with number ``for_clients`` or higher, and the
    HTTP API does not get those with ``for_operators`` or higher: the store, the control socket, a reload and the
    connections of rules need them."""

    limit: int
    for_clients: int
    for_operators: int


UNLIMITED: Final = Descriptors(sys.maxsize, sys.maxsize, sys.maxsize)


def descriptors(limit: int | None = None) -> Descriptors:
    """Return the descriptors of this process. ``limit``: by default, the current limit of the system."""
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return UNLIMITED
    # If there are few, each use has its share.
    for_operators = limit - min(_FOR_NODE, limit // 8)
    return Descriptors(limit, for_operators - min(_FOR_OPERATORS, limit // 8), for_operators)
