"""Descriptors: how many of the process's file descriptors connections may take, so that the node keeps some for itself.

The system gives the lowest number that is free. So a socket of number N says that N descriptors are taken, whoever has
them: nothing has to be counted.
"""

import resource
import sys
from typing import Final, NamedTuple

SETTING: Final = "LimitNOFILE, ulimit -n"
_FOR_NODE: Final = 64
_FOR_OPERATORS: Final = 512


class Descriptors(NamedTuple):
    """``limit``: those of the process. Sockets whose number is ``for_clients`` or more are not given to clients, those
    from ``for_operators`` on not to the HTTP API either: the store, the control socket, a reload and what rules
    connect to need them."""

    limit: int
    for_clients: int
    for_operators: int


UNLIMITED: Final = Descriptors(sys.maxsize, sys.maxsize, sys.maxsize)


def descriptors(limit: int | None = None) -> Descriptors:
    """``limit``: as the system has it now, unless given."""
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return UNLIMITED
    # Where there are few, each has its part.
    for_operators = limit - min(_FOR_NODE, limit // 8)
    return Descriptors(limit, for_operators - min(_FOR_OPERATORS, limit // 8), for_operators)
