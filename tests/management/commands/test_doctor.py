"""``taipan doctor``: what it says of each thing, that it changes nothing, and its exit status."""

import asyncio
import collections
import errno
import json
import os
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taipan.broker.cluster.nats.client import NatsClient
from taipan.broker.cluster.replicas.prospects import _places
from taipan.broker.cluster.wire import MemberRecord, Refusals, Wire, node_key
from taipan.broker.config import ClusterSettings, ListenerSettings
from taipan.broker.observability.metrics import Reasons
from taipan.management.commands import doctor, machine_checks
from taipan.management.commands.finding import Finding
from taipan.management.data_dir import DataDir, holder
from taipan.management.node import main
from tests.support.certificates import Certificates
from tests.support.nats_server import NatsServers, nats_server_program
from tests.support.node import free_port

Said = dict[str, list[dict[str, str]]]


def configured(directory: Path, port: int = 0, more: str = "") -> str:
    file = directory / "taipan.toml"
    file.write_text(
        f'[node]\ndata_dir = "{directory / "data"}"\n[management]\nbind = "127.0.0.1:0"\n'
        f'[dashboard]\nbind = "127.0.0.1:0"\n'
        f'[[listeners]]\nname = "a"\ntype = "tcp"\nbind = "127.0.0.1:{port}"\n{more}'
    )
    return str(file)


def asked(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Said:
    """What it finds, by what it looked at."""
    assert main(["doctor", "--json", *words]) == status
    found: Said = collections.defaultdict(list)
    for each in json.loads(capsys.readouterr().out):
        assert set(each) == {"level", "check", "found", "advice"}
        assert bool(each["advice"]) == (each["level"] != "ok"), each
        found[each["check"]].append(each)
    return found


def everything(directory: Path) -> list[tuple[str, int, float]]:
    paths = [directory, *sorted(directory.rglob("*"))]
    return [(str(path), path.stat().st_mode, path.stat().st_mtime) for path in paths]


def test_where_all_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = configured(tmp_path)
    before = everything(tmp_path)
    assert main(["doctor", file]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"ok:      configuration: {file}" in lines
    assert f"ok:      data_dir: {tmp_path / 'data'} does not exist yet; the first start creates it" in lines
    assert "ok:      lock: no node uses the data directory" in lines
    assert "ok:      port: listeners.0.bind 127.0.0.1:0 is free" in lines
    assert any(line.startswith("ok:      flush: p50 ") for line in lines)
    assert all(line.startswith(("ok:      ", "warning: ")) for line in lines)
    assert everything(tmp_path) == before
    assert main(["--config", file, "doctor"]) == 0
    capsys.readouterr()
    DataDir(str(tmp_path / "data")).close()
    before = everything(tmp_path)
    said = asked(capsys, file)
    assert everything(tmp_path) == before
    assert said["data_dir"][0]["level"] == said["lock"][0]["level"] == "ok"


def test_a_wrong_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = configured(tmp_path, more='colour = "red"\nzone = 3\n')
    said = asked(capsys, file, status=1)
    assert set(said) == {"configuration"} and len(said["configuration"]) == 2
    assert "listeners.0.colour" in said["configuration"][0]["found"]
    assert main(["--config", file, "doctor", file]) == 1
    assert "give FILE or --config, not both" in capsys.readouterr().err
    said = asked(capsys, str(tmp_path / "none"), status=1)
    assert "No such file" in said["configuration"][0]["found"]


def test_a_zone_that_no_listener_uses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zones = "[zones.external]\nmax_qos = 1\n[zones.default]\nmax_qos = 1\n"
    [found] = asked(capsys, configured(tmp_path, more=zones))["zones"]
    assert (found["level"], found["found"]) == ("warning", "no listener uses the zone default")
    assert "zones" not in asked(capsys, configured(tmp_path, more="[zones.external]\nmax_qos = 1\n"))


def test_a_published_default_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = '[[management.apps]]\nid = "{}"\nsecret = "{}"\n'
    said = asked(capsys, configured(tmp_path, more=app.format("one", "a long one") + app.format("mine", "public")))
    [found] = said["secrets"]
    assert found["level"] == "warning"
    assert found["found"] == "management.apps.1.secret: application mine has EMQX's published default"


def test_while_a_node_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """This process is the node: it has the lock, and listens."""
    port = free_port()
    file = configured(tmp_path, port)
    held = DataDir(str(tmp_path / "data"), file)
    with socket.create_server(("127.0.0.1", port)):
        before = everything(tmp_path)
        said = asked(capsys, file)
        assert everything(tmp_path) == before
    assert said["lock"] == [Finding("ok", "lock", f"a node runs: process {os.getpid()}")._asdict()]
    assert said["port"][0]["found"] == f"listeners.0.bind 127.0.0.1:{port} is the node's"
    assert f"of process {os.getpid()}" in said["open_files"][0]["found"]
    said = asked(capsys, file)
    assert said["port"][0]["level"] == "warning" and "does not listen there" in said["port"][0]["advice"]
    other = tmp_path / "other.toml"
    other.write_text(Path(file).read_text())
    said = asked(capsys, str(other))
    assert said["lock"][0]["level"] == "warning" and said["lock"][0]["found"].endswith(f", with {file}")
    held.close()
    assert holder(tmp_path / "data") is None
    (tmp_path / "data" / "lock").write_text("999999999\n\n")
    assert holder(tmp_path / "data") is None


def test_a_port_that_another_process_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    file = configured(tmp_path, port)
    with socket.create_server(("127.0.0.1", port)):
        (said, *_) = asked(capsys, file, status=1)["port"]
        assert (said["level"], said["found"]) == (
            "error", f"listeners.0.bind 127.0.0.1:{port} is in use by another process",
        )  # fmt: skip
        assert f"--set listeners.0.bind=127.0.0.1:{port + 1}" in said["advice"]
    (said, *_) = asked(capsys, file, "--set", "listeners.0.bind=192.0.2.1:1883", status=1)["port"]
    assert "Cannot assign" in said["found"]
    (said, *_) = asked(capsys, file, "--set", "listeners.0.bind=no-such-host.invalid:1883", status=1)["port"]
    assert said["level"] == "error" and "no-such-host.invalid" in said["found"]


def test_unix_sockets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s"
    file = configured(tmp_path, more=f'[[listeners]]\nname = "b"\ntype = "unix"\nbind = "{path}"\n')
    where = f"listeners.1.bind {path}"
    assert asked(capsys, file)["socket"] == [Finding("ok", "socket", f"{where} is free")._asdict()]
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
        (said,) = asked(capsys, file, status=1)["socket"]
        assert said["found"] == f"{where} is used by another process" and str(path) in said["advice"]
        held = DataDir(str(tmp_path / "data"), file)  # as if this process were the node
        assert asked(capsys, file)["socket"] == [Finding("ok", "socket", f"{where} is the node's")._asdict()]
        held.close()
    (said,) = asked(capsys, file)["socket"]
    assert (said["level"], said["found"]) == ("ok", f"{where} is left over: the next start replaces it")
    path.unlink()
    path.write_text("")
    assert asked(capsys, file, status=1)["socket"][0]["found"] == f"{where} is a file that is not a socket"
    path.unlink()
    beside = ("--set", f"listeners.1.bind={tmp_path}/none/s")
    assert asked(capsys, file, *beside, status=1)["socket"][0]["found"].endswith("/none/s: there is no such directory")
    wrong = asked(capsys, file, "--set", "listeners.1.socket_group=no-such-group", status=1)
    assert any("there is no group 'no-such-group'" in each["found"] for found in wrong.values() for each in found)


def test_the_data_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = configured(tmp_path)
    data = tmp_path / "data"
    DataDir(str(data)).close()
    data.chmod(0o755)
    (said,) = asked(capsys, file)["data_dir"]
    assert said["level"] == "warning" and f"others may use {data} (mode 0755)" in said["found"]
    assert data.stat().st_mode & 0o777 == 0o755
    (said,) = asked(capsys, file, "--set", "node.data_dir=/tmp", status=1)["data_dir"]
    assert "other programs may use this directory" in said["found"]
    (said,) = asked(capsys, file, "--set", f"node.data_dir={file}", status=1)["data_dir"]
    assert said["found"] == f"{file} is not a directory"
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    (said,) = asked(capsys, file, status=1)["data_dir"]
    assert "chown" in said["advice"]


def test_a_reader_who_has_seen_enough(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "taipan.management.node", "doctor", configured(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(60) == 1
    process.stderr.close()


def test_what_may_not_be_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is told; nothing ends it."""
    file = configured(tmp_path)
    DataDir(str(tmp_path / "data")).close()

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/somewhere")

    monkeypatch.setattr(doctor, "is_own", refused)
    said = asked(capsys, file, status=1)
    assert said["data_dir"][0]["found"] == "/somewhere: Permission denied"
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: refused() if path.name == "data" else is_dir(path))
    said = asked(capsys, file, status=1)
    assert said["lock"][0]["found"] == said["data_dir"][0]["found"] == f"{tmp_path / 'data'}: Permission denied"
    assert said["port"][0]["level"] == "ok" and said["flush"][0]["found"].endswith(f" in {tmp_path}")


def test_the_clock(tmp_path: Path) -> None:
    store = tmp_path / "taipan.db"
    now = (time.time(), time.monotonic())
    assert [each.level for each in machine_checks.clock(now, store)] in (["ok"], ["warning"])
    jumped = (now[0] - 5, now[1])
    assert next(machine_checks.clock(jumped, store)).found.startswith("was set by +5.0")
    store.write_bytes(b"")
    os.utime(store, (now[0] + 3600, now[0] + 3600))
    behind = next(machine_checks.clock(now, store))
    assert (behind.level, behind.found.endswith("before the last write to taipan.db")) == ("error", True)


@pytest.mark.parametrize("state, level", [(0, "ok"), (5, "warning"), (-1, "ok")])
def test_what_the_kernel_says_of_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: int, level: str
) -> None:
    class Library:
        @staticmethod
        def adjtimex(buffer: object) -> int:
            return state

    monkeypatch.setattr(machine_checks.ctypes, "CDLL", lambda *_, **__: Library)
    (found,) = machine_checks.clock((time.time(), time.monotonic()), tmp_path / "none")
    assert found.level == level


def test_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    free, bound = (
        ListenerSettings(name="a", type="tcp", bind=""),
        ListenerSettings(name="b", type="tcp", bind="", max_connections=5000, backlog=10_000),
    )
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    assert machine_checks.open_files([free], 0).level == "warning"
    short = machine_checks.open_files([bound], 0)
    assert short.level == "warning" and "max_connections is 5000" in short.found
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 6000))
    assert machine_checks.open_files([bound], 0) == Finding("ok", "open_files", "6000 here: about 5900 clients")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, resource.RLIM_INFINITY))
    assert machine_checks.open_files([free, bound], 0).level == "ok"
    most = tmp_path / "somaxconn"
    monkeypatch.setattr(machine_checks, "_SOMAXCONN", most)
    assert machine_checks.backlog([free]) is None
    most.write_text("4096\n")
    few = machine_checks.backlog([free, bound])
    assert few is not None and (few.level, few.advice) == ("warning", "sysctl -w net.core.somaxconn=10000")


def test_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def found(durable: bool = True) -> dict[str, Finding]:
        return {each.check: each for each in machine_checks.disk(tmp_path, durable)}

    assert found()["flush"].level == "ok" and list(tmp_path.iterdir()) == []
    monkeypatch.setattr(machine_checks, "_flushes", lambda _: [0.001, 0.001, 0.3])
    slow = found()["flush"]
    assert slow.level == "warning" and "p50 1.00 ms, worst of 3 300.00 ms" in slow.found
    assert found(durable=False)["flush"].level == "ok"
    usage = shutil.disk_usage(tmp_path)
    for free, level in ((1 << 20, "error"), (usage.total // 1000, "warning"), (1 << 40, "ok")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage._replace(total=1 << 40, free=free))
        assert found()["space"].level == level, free
    monkeypatch.setattr(machine_checks, "_file_system", lambda _: "tmpfs")
    assert found()["disk"].level == "warning" and "disk" not in found(durable=False)

    def refused(_: Path) -> list[float]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine_checks, "_flushes", refused)
    assert found()["flush"] == Finding(
        "error", "flush", f"{tmp_path}: Permission denied", "let the node's user write there"
    )


def test_which_file_system_a_directory_is_on() -> None:
    assert machine_checks._file_system(Path("/proc/self")) == "proc"


def test_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Certificates(tmp_path)

    def served(certfile: str, keyfile: str, more: str = "") -> list[tuple[str, str]]:
        tls = '[[listeners]]\nname = "t"\ntype = "ssl"\nbind = "127.0.0.1:0"\n[listeners.tls]\n'
        tls += f'certfile = "{certfile}"\nkeyfile = "{keyfile}"\n{more}'
        findings = list(doctor.examined(configured(tmp_path, more=tls), []))
        return [(each.level, each.found) for each in findings if each.check in ("certificate", "configuration")]

    good = made.issue("broker.example", days=100)
    _, (level, found) = served(*good)
    assert level == "ok" and found.startswith(f"listeners.1.tls.certfile: {good[0]} until 20")
    assert found.endswith(", for broker.example")
    _, (level, _) = served(*made.issue("soon", days=3))
    assert level == "warning"
    named = 'server_names = {{ "{}" = {{ certfile = "{}", keyfile = "{}" }} }}\n'
    for name, level in (("broker.example", "ok"), ("other.example", "warning")):
        assert served(*good, named.format(name, *good))[2][0] == level
    expired = made.issue("old", expired=True)
    ((level, found),) = served(*expired)
    assert level == "error" and "expired on" in found
    other = made.issue("another", days=100)
    assert served(good[0], other[1])[0][0] == "error"
    assert served(str(tmp_path / "gone.pem"), other[1])[0][0] == "error"


def test_missing_bytecode_is_named(tmp_path: Path) -> None:
    """As where the files belong to another user than the node's, or Python may write none."""
    file = configured(tmp_path)
    command = [sys.executable, "-m", "taipan.management.node", "doctor", "--json", file]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path / "bytecode")

    def said(**more: str) -> dict[str, str]:
        done = subprocess.run(command, env={**environment, **more}, capture_output=True, text=True, timeout=60)
        (found,) = [each for each in json.loads(done.stdout) if each["check"] == "bytecode"]
        return found  # type: ignore[no-any-return]

    none = said(PYTHONDONTWRITEBYTECODE="1")
    assert none["level"] == "warning" and none["found"].startswith("missing for ")
    words = shlex.split(none["advice"].partition(": ")[2])
    assert words[:4] == [sys.executable, "-m", "compileall", "-q"] and (Path(words[4]) / "broker").is_dir()
    subprocess.run(words, env=environment, capture_output=True, timeout=120)
    assert said(PYTHONDONTWRITEBYTECODE="1")["level"] == "ok"


COPIES = '[durability]\nlevel = "disk"\n[cluster]\nservers = ["{}"]\nreplicas = 1\nrack = "r1"\n{}'
MAY_NOT = """
max_payload: 4MB
authorization {{ users = [{{ user: a, password: b, permissions: {{ publish: {{ deny: "{}" }} }} }}] }}
"""


def found_of(said: Said) -> list[tuple[str, str]]:
    return [(each["level"], each["found"]) for each in said["replicas"]]


async def with_members(settings: ClusterSettings, members: dict[str, tuple[str, str | None]]) -> None:
    """Write the records of these nodes, with machine and rack, and delete those of others."""
    client = NatsClient(settings, "test", 1 << 20)
    await client.start()
    for number in range(2, 5):
        name = f"n{number}@h"
        wire = Wire(settings.name, name, Refusals(Reasons(), time.monotonic))
        wire.identify("uid", 1)
        record = None
        if name in members:
            host, rack = members[name]
            record = wire.write(MemberRecord(name, "uid", 1, host, 1, time.time(), "1.0.0", rack=rack))
        await client.write("members", node_key(name), record, None, f"{number}-{time.time()}")
    await client.stop()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether other nodes can have them, where, and whether there is room for those of others."""
    nats_server_program()
    bucket = "bucket replicas of the cluster taipan"
    async with NatsServers() as servers:
        file = configured(tmp_path, more=COPIES.format(servers.urls[0], ""))
        assert found_of(await asyncio.to_thread(asked, capsys, file))[:2] == [
            ("ok", f"{bucket} does not exist yet; the first node with cluster.replicas creates it"),
            ("warning", "0 other nodes keep copies, cluster.replicas is 1"),
        ]
        settings = ClusterSettings(servers=servers.urls, replicas=1)
        await with_members(settings, {"n2@h": ("other", "r2"), "n3@h": ("third", "r1"), "n4@h": ("fourth", None)})
        found = found_of(await asyncio.to_thread(asked, capsys, file))
        assert found[:2] == [
            ("ok", f"{bucket} is writable"), ("ok", "the copies would be on n2@h, in other racks than r1")
        ]  # fmt: skip
        assert found[2][0] == "ok" and "copies of other nodes use 0 MiB" in found[2][1]
        assert await asyncio.to_thread(main, ["check", "--connect", file]) == 0
        said = capsys.readouterr().out
        assert f"copies: {bucket} is writable; copies: the copies would be on n2@h" in said
        for members, what in (
            ({"n2@h": ("other", "r1")}, "two of 2 nodes have the cluster.rack r1"),
            ({"n2@h": ("other", "")}, "no cluster.rack on n2@h"),
            ({"n2@h": (socket.gethostname(), "r2")}, "two of 2 nodes are on one machine"),
        ):
            await with_members(settings, members)
            level, told = found_of(await asyncio.to_thread(asked, capsys, file))[1]
            assert level == "warning" and what in told
        store = tmp_path / "data" / "taipan.db"
        store.parent.mkdir(mode=0o700)
        with store.open("wb") as sparse:
            sparse.truncate(1 << 43)
        assert found_of(await asyncio.to_thread(asked, capsys, file))[2][0] == "warning"
        store.unlink()
    assert found_of(await asyncio.to_thread(asked, capsys, file, status=1))[0][0] == "error"


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_bucket_that_this_node_may_not_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nats_server_program()
    denied = MAY_NOT.format("$KV.taipan-taipan-replicas.>")
    async with NatsServers(more=denied) as servers:
        settings = ClusterSettings(servers=servers.urls, user="a", password="b", replicas=1)
        await with_members(settings, {"n2@h": ("other", "r2")})
        file = configured(tmp_path, more=COPIES.format(servers.urls[0], 'user = "a"\npassword = "b"\n'))
        said = await asyncio.to_thread(asked, capsys, file, status=1)
        level, told = found_of(said)[0]
        assert level == "error" and "is not writable" in told and "ermissions" in told
        assert said["replicas"][0]["advice"] == ("let the user of cluster.user publish to $KV.taipan-taipan-replicas.>")
        assert await asyncio.to_thread(main, ["check", "--connect", file]) == 1
        assert "is not writable" in capsys.readouterr().err


def test_copies_that_are_kept_without_replicas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    DataDir(str(tmp_path / "data")).close()
    copy = tmp_path / "data" / "replicas" / "0123456789abcdef"
    copy.mkdir(parents=True)
    (copy / "taipan.db").write_bytes(bytes(3 << 20))
    (found,) = found_of(asked(capsys, configured(tmp_path)))
    assert found == ("warning", f"{tmp_path / 'data' / 'replicas'} has copies of other nodes' data, 3 MiB")
    file = configured(tmp_path, more='[cluster]\nservers = ["nats://127.0.0.1:4222"]\n')
    assert found_of(asked(capsys, file))[0][0] == "ok"


def test_two_copies_in_one_rack() -> None:
    """That of the other two nodes, not of this one."""
    members = [MemberRecord(f"n{n}@h", "uid", 1, f"h{n}", 1, time.time(), "1.0.0", rack="r2") for n in (2, 3)]
    settings = ClusterSettings(servers=["nats://127.0.0.1:4222"], replicas=2, rack="r1")
    (found,) = _places(members, settings, "n1@h")
    assert found.level == "warning" and found.found.endswith("two of 3 nodes have the cluster.rack r2")
