"""Limits of the control groups (v1 or v2) of this process: the memory and the processors of a container or service."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")


def processors(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the number of processors that this process may use, at least 1: those of the machine, of its affinity, or
    the quota of its control groups, rounded up."""
    most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = limits("cpu", "cpu.cfs_quota_us", "cpu.max", proc, cgroups)
    periods = limits("cpu", "cpu.cfs_period_us", "cpu.max", proc, cgroups)
    for quota, period in zip(quotas, periods, strict=False):
        # v2 has both in one file, "200000 100000"; without a limit it has "max", and v1 has -1.
        allowed, length = quota.split()[0], period.split()[-1]
        if allowed.isdigit() and length.isdigit() and int(length) > 0:
            most = min(most, max(1, -(-int(allowed) // int(length))))
    return most


def limits(controller: str, file_v1: str, file_v2: str, proc: Path = PROC, cgroups: Path = CGROUPS) -> Iterator[str]:
    """Yield the contents of a controller's file in the control groups of this process and those above them."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers and controller not in controllers.split(","):
            continue
        root, file = (cgroups / controller, file_v1) if controllers else (cgroups, file_v2)
        below = root / path.lstrip("/")
        # In a container the path may be that of the host; then its own control group is the root.
        for directory in (below, *below.parents):
            if not directory.is_relative_to(root):
                break
            try:
                text = (directory / file).read_text().strip()
            except OSError:  # the file does not exist
                continue
            if text:
                yield text
