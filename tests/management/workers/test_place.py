"""The settings of a worker, and when a process starts again."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.core.memory import MIN_BUDGET, parse_limit
from taipan.broker.loop.control_groups import processors
from taipan.management.configuration.config import Settings, read_data
from taipan.management.workers.place import (
    WorkerPlace,
    faults,
    forget_nats,
    own_place,
    retiring,
    settings_at,
    wanted,
)
from taipan.management.workers.restarts import FIRST, LONGEST, STABLE, Restarts

LISTENERS = [
    {"name": "a", "type": "tcp", "bind": "127.0.0.1:1883", "max_connections": 101, "accept_rate": 0},
    {"name": "b", "type": "ws", "bind": "127.0.0.1:8083", "accept_rate": 7},
    {"name": "c", "type": "unix", "bind": "/run/mqtt.sock"},
]


def settings(**tables: Any) -> Settings:
    return read_data({"listeners": LISTENERS, "limits": {"memory": "50%"}, **tables}).settings


def test_worker_1_is_the_node() -> None:
    given = settings(node={"name": "n@h", "data_dir": "d"})
    found = settings_at(WorkerPlace(number=1, count=3, nats_port=5, nats_password="p"), given)
    assert (found.broker.node.name, found.broker.node.data_dir) == ("n@h", "d")
    assert found.management.enabled and found.dashboard.enabled
    assert [each.name for each in found.broker.listeners] == ["a", "b", "c"]
    assert [each.reuse_port for each in found.broker.listeners] == [True, True, False]
    cluster = found.broker.cluster
    assert cluster is not None and cluster.servers == ("nats://127.0.0.1:5",)
    assert (cluster.user, cluster.password, cluster.strict_subscribe) == ("taipan", "p", True)


def test_the_others_have_names_and_directories_of_their_own() -> None:
    given = settings(node={"name": "n@h", "data_dir": "d"})
    found = settings_at(WorkerPlace(number=2, count=3, nats_port=5), given)
    assert (found.broker.node.name, found.broker.node.data_dir) == ("n-2@h", "d/worker-2")
    assert not found.management.enabled and not found.dashboard.enabled
    assert [each.name for each in found.broker.listeners] == ["a", "b"]
    assert len(found.broker.listener_zones) == 2


@pytest.mark.parametrize("memory", ["50%", "0.5", 1 << 33, str(1 << 33)])
def test_limits_of_the_machine_are_divided(memory: int | str) -> None:
    """Never below what a node needs; 0 means no limit, and stays."""
    found = settings_at(WorkerPlace(number=2, count=3), settings(limits={"memory": memory}))
    assert found.broker.limits.memory == parse_limit(memory) // 3
    assert [each.max_connections for each in found.broker.listeners] == [34, 341_334]
    assert [each.accept_rate for each in found.broker.listeners] == [0, 3]
    small = settings_at(WorkerPlace(number=1, count=3), settings(limits={"memory": MIN_BUDGET}))
    assert small.broker.limits.memory == MIN_BUDGET


def test_a_worker_that_is_not_wanted_accepts_no_clients() -> None:
    found = settings_at(WorkerPlace(number=3, count=3, retires=True), settings())
    assert found.broker.listeners == () and found.broker.listener_zones == ()


def test_the_cluster_of_the_configuration_stays() -> None:
    given = settings(cluster={"servers": ["nats://10.0.0.1:4222"], "user": "u", "password": "s"})
    assert settings_at(WorkerPlace(number=2, count=2), given).broker.cluster == given.broker.cluster


def test_which_workers_are_wanted(tmp_path: Path) -> None:
    for name in ("worker-2", "worker-3", "worker-11", "worker-0", "worker-x", "worker-nats"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    (tmp_path / "worker-4").mkdir()  # of another program
    found = settings(node={"data_dir": str(tmp_path), "workers": 2})
    assert (wanted(found), retiring(found)) == (2, [3, 11])
    assert wanted(settings(node={"workers": "auto"})) == min(processors(), 64)
    assert retiring(settings(node={"data_dir": str(tmp_path / "none")})) == []


def test_data_that_may_not_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data directory: whoever opens it says so. That of a worker: it is started, and says so."""
    (tmp_path / "worker-3").mkdir()

    def denied(path: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("os.lstat", denied)
    found = settings(node={"data_dir": str(tmp_path), "workers": 1})
    assert retiring(found) == [3]
    monkeypatch.setattr("os.listdir", denied)
    assert retiring(found) == []


def test_what_cannot_be_shared_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    node = {"workers": 2, "data_dir": str(tmp_path)}
    listeners = [{"name": "a", "type": "tcp", "bind": "127.0.0.1:0"}]
    (fault,) = faults(settings(node=node, listeners=listeners))
    assert fault.startswith("listeners.0.bind 127.0.0.1:0: node.workers requires a fixed port")
    assert faults(settings(node={**node, "workers": 1}, listeners=listeners)) == []
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    (fault,) = faults(settings(node=node))
    assert fault.startswith("node.workers: nats-server is not installed")


@pytest.mark.parametrize("workers", [0, 65, "many", 1.5, True, ""])
def test_numbers_of_workers_that_make_no_sense(workers: object) -> None:
    with pytest.raises(Exception, match=r"node\.workers"):
        settings(node={"workers": workers})


def test_a_place_as_the_supervisor_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAIPAN_WORKER", raising=False)
    assert own_place() is None
    place = WorkerPlace(number=2, count=4, nats_port=7, nats_password='"', retires=True)
    monkeypatch.setenv("TAIPAN_WORKER", place.as_text())
    assert own_place() == place


def test_the_nats_server_of_workers_is_forgotten(tmp_path: Path) -> None:
    """Also if a start was killed while it did so; directories of other programs stay."""
    for name in ("worker-nats", "worker-nats.old", "nats"):
        (tmp_path / name / "jetstream").mkdir(parents=True)
    forget_nats(str(tmp_path))
    assert [each.name for each in tmp_path.iterdir()] == ["nats"]
    forget_nats(str(tmp_path))
    (tmp_path / "worker-nats").write_text("")
    with pytest.raises(NotADirectoryError):
        forget_nats(str(tmp_path))


def test_when_a_process_starts_again() -> None:
    """Twice as late each time, unless it ran for a while."""
    restarts = Restarts()
    delays = []
    for now in range(10):
        restarts.started(now)
        delays.append(restarts.ended(now + 0.5))
    assert delays[:4] == [FIRST, FIRST * 2, FIRST * 4, FIRST * 8] and delays[-1] == LONGEST
    restarts.started(100)
    assert restarts.ended(100 + STABLE) == FIRST
    restarts.started(200)
    assert restarts.ended(200) == FIRST * 2


def test_processors_of_a_container(tmp_path: Path) -> None:
    """The least of its own quota and those above; rounded up, at least one; "max" and -1 are none."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor")
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    own = groups / "a" / "b"
    (proc / "self").mkdir(parents=True)
    own.mkdir(parents=True)
    cgroup = proc / "self" / "cgroup"
    cgroup.write_text("0::/a/b\n")
    usable = len(os.sched_getaffinity(0))
    assert processors(proc, groups) == usable
    (own / "cpu.max").write_text("max 100000\n")
    assert processors(proc, groups) == usable
    (own.parent / "cpu.max").write_text("50000 100000\n")
    assert processors(proc, groups) == 1
    (own.parent / "cpu.max").write_text("110000 100000\n")
    assert processors(proc, groups) == min(2, usable)
    cgroup.write_text("4:cpu,cpuacct:/x\n")
    (groups / "cpu" / "x").mkdir(parents=True)
    (groups / "cpu" / "x" / "cpu.cfs_period_us").write_text("100000\n")
    (groups / "cpu" / "x" / "cpu.cfs_quota_us").write_text("-1\n")
    assert processors(proc, groups) == usable
    (groups / "cpu" / "x" / "cpu.cfs_quota_us").write_text("100000\n")
    assert processors(proc, groups) == 1
