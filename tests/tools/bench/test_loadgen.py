"""The load generator against a node: what it counts over each transport is what was sent."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.absent import absent, reason
from tests.support.make import make
from tools.bench.brokers import running
from tools.bench.results import faults
from tools.bench.run import LOADGEN

OVER = {"tcp": (), "ws": ("--ws", "/mqtt"), "ssl": ("--tls", "1")}

pytestmark = pytest.mark.skipif(not Path("/usr/include/openssl/ssl.h").is_file(), reason=reason("openssl/ssl.h"))


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of its own: several processes may run tests at once."""
    if shutil.which("cc") is None:
        absent("cc")
    directory = tmp_path_factory.mktemp("loadgen")
    for name in ("loadgen.c", "Makefile"):
        shutil.copy(LOADGEN / name, directory)
    made = make("--silent", directory=directory, env={"CFLAGS": "-O1 -Werror"})
    assert made.returncode == 0, made
    return directory / "loadgen"


def run(generator: Path, port: int, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [str(generator), words[0], "--port", str(port), "--drain", "10", "--timeout", "20", *words[1:]],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert not faults(found), found
    return found


@pytest.mark.parametrize("transport", OVER)
def test_every_message_comes_over_each_transport(generator: Path, transport: str) -> None:
    with running("taipan", transport=transport) as (port, _):
        over = OVER[transport]
        plain = run(generator, port, "pubsub", "--count", "300", "--qos", "1", "--size", "40000", *over)
        assert plain["delivered"] == 300
        mixed = run(generator, port, "pubsub", "--count", "200", "--mixed", "1", "--spread", "50", "--pubs", "2",
                    "--subs", "2", *over)  # fmt: skip
        assert mixed["delivered"] == 400
        version_5 = ("--version", "5", "--props", "1", "--alias", "1", "--subid", "1")
        full = run(generator, port, "pubsub", "--count", "200", "--qos", "2", "--window", "20", *version_5, *over)
        assert full["delivered"] == 200 and full["bad_id"] == full["bad_props"] == 0
        storm = run(generator, port, "storm", "--conns", "20", "--clean", "0", *over)
        assert storm["up"] == storm["session_present"] == storm["subscribed"] == 20


def test_a_reader_that_stopped_is_left_out_of_what_is_counted(generator: Path) -> None:
    with running("taipan") as (port, _):
        load = ("--pubs", "5", "--subs", "5", "--rate", "500", "--heavy", "100", "--warmup", "0.1")
        for seconds in (1, 5, 20):  # longer where a machine that does much else lets little through
            reading = run(generator, port, "pubsub", *load, "--duration", str(seconds))
            stopped = run(generator, port, "pubsub", *load, "--duration", str(seconds), "--slow", "1")
            if min(reading["heavy_received"], stopped["heavy_sent"]) > 50 and stopped["expected"] > 200:
                break
        assert reading["heavy_received"] > 50
        assert stopped["heavy_received"] == 0 and stopped["heavy_sent"] > 50
        assert stopped["delivered"] == stopped["expected"] > 200


def test_what_needs_5_0_says_so(generator: Path) -> None:
    done = subprocess.run([str(generator), "pubsub", "--props", "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--version 5" in done.stderr
