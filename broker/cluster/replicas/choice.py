"""The choice of the nodes that keep copies of a node's log."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple


class CopyPlace(NamedTuple):
    """The rack and the machine of a node. An empty rack counts as a rack of its own. ``host``: the machine, which its
    workers share."""

    rack: str
    host: str


def choose(origin: str, place: CopyPlace, candidates: Mapping[str, CopyPlace], count: int) -> list[str]:
    """Return the ``count`` nodes that should keep copies of ``origin``, or fewer if there are fewer candidates.
    ``candidates``: the places of the nodes by name. Rendezvous hashing: each node ranks the others by a hash of both
    names, so a node that joins or leaves changes only the choice of those that rank it high. Nodes in a rack without
    the origin or another copy come first, then nodes on a machine without either."""
    ranked = sorted(candidates, key=lambda name: _rank(origin, name))
    racks, hosts = {place.rack} - {""}, {place.host}
    chosen: list[str] = []
    while ranked and len(chosen) < count:
        best = min(ranked, key=lambda name: (candidates[name].rack in racks, candidates[name].host in hosts))
        ranked.remove(best)
        chosen.append(best)
        racks |= {candidates[best].rack} - {""}
        hosts.add(candidates[best].host)
    return chosen


def _rank(origin: str, name: str) -> bytes:
    return blake2b(f"{origin}\0{name}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
