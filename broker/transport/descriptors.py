"""Descriptors: how many file descriptors of the process connections may use, so that the node keeps some for itself.

The system assigns the lowest free number. So a socket with number N shows that N descriptors are in use, whoever uses
them: nothing has to be counted."""

import resource
import sys
from typing import Final, NamedTuple

SETTING: Final = "LimitNOFILE, ulimit -n"
_FOR_NODE: Final = 64
_FOR_OPERATORS: Final = 512


class Descriptors(NamedTuple):
    """``limit``: that of the process. Sockets whose number is ``for_clients`` or more are not given to clients, those
    from ``for_operators`` on not even to the HTTP API: the store, the control socket, a reload and the connections of
    rules need them."""

    limit: int
    for_clients: int
    for_operators: int


UNLIMITED: Final = Descriptors(sys.maxsize, sys.maxsize, sys.maxsize)


def descriptors(limit: int | None = None) -> Descriptors:
    """``limit``: the current one of the system, unless given."""
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return UNLIMITED
    # If there are few, each use has its share.
    for_operators = limit - min(_FOR_NODE, limit // 8)
    return Descriptors(limit, for_operators - min(_FOR_OPERATORS, limit // 8), for_operators)
