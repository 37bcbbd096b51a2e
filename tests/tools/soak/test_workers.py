"""The soak of ``taipan --workers 2`` for some cycles: each of its processes is killed."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.support.nats_server import nats_server_program
from tools.soak.workers import WorkersSoak


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", ["kill worker", "kill nats", "kill supervisor", "stop"])
def test_workers_keep_what_they_acknowledged(tmp_path: Path, fault: str) -> None:
    nats_server_program()
    seed = random.SystemRandom().randrange(1_000_000)
    soak = WorkersSoak(seed, tmp_path / "workers", 2, fault)
    kept = asyncio.run(soak.run(2, settle_every=2, seconds=60.0))
    assert kept, f"seed={seed} {soak.account()}\n" + "\n".join(each[:3000] for each in soak.promises.violations[:3])
    assert soak.promises.promised > 0 and soak.cycles > 0
