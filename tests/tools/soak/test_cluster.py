"""The soak of a cluster for some cycles: three nodes and three NATS servers under load, and what goes wrong."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.support.nats_server import nats_server_program
from tools.soak.cluster import ClusterSoak


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("fault", "takeover"), [("none", "refuse"), ("kill node", "refuse"), ("kill nats", "refuse"), ("cut both", "fresh")]
)
def test_a_cluster_keeps_what_it_acknowledged(tmp_path: Path, fault: str, takeover: str) -> None:
    keeps_its_promises(tmp_path, fault, takeover)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cluster_with_copies_loses_nothing_with_a_disk(tmp_path: Path) -> None:
    keeps_its_promises(tmp_path, "lose disk", "refuse", replicas=1)


def keeps_its_promises(directory: Path, fault: str, takeover: str, replicas: int = 0) -> None:
    nats_server_program()
    seed = random.SystemRandom().randrange(1_000_000)
    soak = ClusterSoak(seed, directory / "cluster", fault, takeover, replicas)
    kept = asyncio.run(soak.run(2, settle_every=2, seconds=60.0))
    assert kept, f"seed={seed} {soak.account()}\n" + "\n".join(each[:3000] for each in soak.promises.violations[:3])
    assert soak.promises.promised > 0 and soak.cycles > 0
