"""The runtime: the resources that this process uses, in the form of ``emqx_ctl vm``."""

import os
from typing import Final

from taipan.broker.loop.cooperative_slice import CooperativeSlice

from .nodes import Nodes

_DESCRIPTORS: Final = "/dev/fd"


async def runtime(nodes: Nodes) -> dict[str, object]:
    """Return ``<group>/<name>`` and value.

    ``memory`` is in bytes, of the machine and of this process; ``process`` counts threads, ``ports`` open file
    descriptors, which are Python's closest equivalent."""
    node = nodes.status(memory_text=False)
    descriptors = await open_descriptors()
    return {
        "cpu/load1": node.load1,
        "cpu/load5": node.load5,
        "cpu/load15": node.load15,
        "memory/total": node.memory_total,
        "memory/used": node.memory_used,
        "process/limit": node.process_available,
        "process/count": node.process_used,
        "io/max_fds": node.max_fds,
        "io/active_fds": descriptors,
        "ports/count": descriptors,
        "ports/limit": node.max_fds,
    }


async def open_descriptors() -> int:
    """How many file descriptors this process has open; counted in slices, because each client is one."""
    count = 0
    work = CooperativeSlice()
    with os.scandir(_DESCRIPTORS) as entries:
        for _ in entries:
            count += 1
            await work.checkpoint()
    return count - 1  # the descriptor that was used for counting
