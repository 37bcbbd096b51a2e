"""The choice of the nodes that have copies of a node's log."""

from collections.abc import Mapping
from hashlib import blake2b


def choose(origin: str, rack: str, candidates: Mapping[str, str], count: int) -> list[str]:
    """Return the ``count`` nodes that are to have copies of ``origin``, fewer if there are fewer candidates.

    ``candidates``: the racks of the nodes by name; an empty rack is one of its own. Rendezvous hashing: each node ranks
    the others by a hash of both names, so a node that comes or goes changes only the choice of those that rank it high.
    A node in a rack that has neither the origin nor another copy is preferred."""
    ranked = sorted(candidates, key=lambda name: _rank(origin, name))
    racks = {rack} - {""}
    chosen: list[str] = []
    while ranked and len(chosen) < count:
        best = next((name for name in ranked if candidates[name] not in racks), ranked[0])
        ranked.remove(best)
        chosen.append(best)
        racks |= {candidates[best]} - {""}
    return chosen


def _rank(origin: str, name: str) -> bytes:
    return blake2b(f"{origin}\0{name}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
