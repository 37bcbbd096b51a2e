"""Memory: what is counted, what the resident size adds, the levels, and the limit that there is."""

from pathlib import Path

import pytest

from taipan.broker.core.memory import MIN_BUDGET, Memory, installed, parse_limit
from taipan.broker.hosted_node import HostedMemory
from taipan.broker.session.memory_account import NORMAL, REFUSING, SHEDDING, SLOWING, MemoryAccount

MB = 1_000_000


class MemoryBudget:
    """A budget of 1 GB, of which the process takes 100 MB by itself."""

    def __init__(self) -> None:
        self.resident = 100 * MB
        self.held = 0
        self.account = MemoryAccount()
        self.memory = Memory(1000 * MB, self.account, lambda: self.resident)
        self.memory.source("queues", lambda: self.held)
        self.now = 0.0

    def level(self, held: int, resident: int = 0) -> int:
        self.held = held * MB
        self.resident = (resident or held + 100) * MB
        self.now += 2
        return self.memory.look(self.now)


def test_levels_begin_and_end_apart() -> None:
    budget = MemoryBudget()
    changes: list[int] = []
    budget.memory.changed = changes.append
    assert [budget.level(held) for held in (600, 700, 810, 905, 840, 760, 740, 660, 600)] == [
        NORMAL, REFUSING, SLOWING, SHEDDING, SHEDDING, SLOWING, REFUSING, REFUSING, NORMAL,
    ]  # fmt: skip
    assert changes == [NORMAL, REFUSING, SLOWING, SHEDDING, SLOWING, REFUSING]
    assert budget.level(950) == SHEDDING and budget.account.level == SHEDDING
    assert budget.memory.excess == 120 * MB


def test_what_no_account_has_counts_as_well() -> None:
    budget = MemoryBudget()
    assert budget.level(100, 850) == REFUSING
    assert budget.memory.parts() == {"base": 100 * MB, "queues": 100 * MB, "other": 650 * MB}


def test_memory_that_was_freed_and_stays_with_the_process_is_not_in_use() -> None:
    budget = MemoryBudget()
    assert budget.level(850) == SLOWING
    assert budget.level(50, 950) == NORMAL
    assert budget.memory.used == 150 * MB
    # What comes on top of it is, and after the system had it back, all of it.
    assert budget.level(50, 1650) == REFUSING
    assert budget.level(50, 150) == NORMAL
    assert budget.level(50, 950) == SLOWING


def test_a_budget_that_the_process_alone_exceeds_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    memory = Memory(MIN_BUDGET, MemoryAccount(), lambda: 100 * MB)
    assert memory.limit > 130 * MB
    assert "limits.memory" in caplog.text


def test_the_setting_is_bytes_or_a_part() -> None:
    assert parse_limit(100 * MB) == parse_limit(str(100 * MB)) == 100 * MB
    assert parse_limit("1", lambda: 1000 * MB) == 1000 * MB
    assert parse_limit("50%", lambda: 1000 * MB) == parse_limit("0.5", lambda: 1000 * MB) == 500 * MB
    assert parse_limit("1%", lambda: 1000 * MB) == MIN_BUDGET
    for wrong in (0, 1000, "1000", "512MB", "9" * 5000, "", "half", "0", "0%", "101%", "-1", "1.5", "nan"):
        with pytest.raises(ValueError, match="expected"):
            parse_limit(wrong)


def test_the_cgroup_and_those_above_it_bound_what_there_is(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    machine = installed(proc, cgroups)
    assert machine > MIN_BUDGET
    (proc / "self" / "cgroup").write_text("0::/a/b\n")
    (cgroups / "a" / "b").mkdir(parents=True)
    (cgroups / "a" / "b" / "memory.max").write_text("max\n")
    (cgroups / "a" / "memory.max").write_text("70000000\n")
    assert installed(proc, cgroups) == 70 * MB
    (cgroups / "a" / "b" / "memory.max").write_text("60000000\n")
    assert installed(proc, cgroups) == 60 * MB
    # Version 1; a container sees its own group as the root and the path of the host.
    (proc / "self" / "cgroup").write_text("9:cpu,memory:/docker/0123\n5:pids:/docker/0123\n")
    (cgroups / "memory").mkdir()
    (cgroups / "memory" / "memory.limit_in_bytes").write_text("50000000\n")
    assert installed(proc, cgroups) == 50 * MB
    (cgroups / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert installed(proc, cgroups) == machine


def test_freed_memory_is_given_back_before_it_counts() -> None:
    budget = MemoryBudget()
    given: list[float] = []

    def trim() -> None:
        given.append(budget.now)
        budget.resident = 150 * MB

    budget.memory._trim = trim
    assert budget.level(50, 1500) == NORMAL
    assert given == [2.0] and budget.memory.parts()["other"] == 0
    # What is not there to be given back is not asked for again and again.
    budget.memory._trim = lambda: given.append(budget.now)
    assert [budget.level(50, 1500) for _ in range(3)] == [SHEDDING, SHEDDING, SHEDDING]
    assert given == [2.0, 4.0]


def test_what_stays_unexplained_sinks() -> None:
    """New sessions were refused until a restart, for memory that nobody could give back."""
    budget = MemoryBudget()
    assert budget.level(100, 850) == REFUSING
    before = budget.memory.parts()["other"]
    for _ in range(200):
        budget.level(100, 850)
    assert budget.account.level == NORMAL
    # Not more than a quarter of the limit, and what comes on top counts at once.
    assert before - budget.memory.parts()["other"] == 250 * MB
    assert budget.level(100, 1150) == SLOWING


def test_the_process_itself_is_what_it_takes_after_its_start() -> None:
    budget = MemoryBudget()
    budget.resident, budget.held = 180 * MB, 30 * MB
    budget.memory.started()
    assert budget.memory.base == 150 * MB
    assert budget.level(30) == NORMAL and budget.memory.used == 180 * MB


def hosted_by(host: MemoryBudget, held: int) -> Memory:
    """The memory of a node in the same process, whose queues have so many MB."""
    memory = HostedMemory(host.memory, MemoryAccount())
    memory.source("queues", lambda: held * MB)
    memory.source("host", lambda: host.memory.used - held * MB)
    host.memory.source("hosted", lambda: memory.counted_without("host"), lambda: memory.sheddable)
    return memory


def test_queues_of_two_nodes_in_one_process_are_shed_together() -> None:
    """Those of neither node alone would be enough. The rest of the memory is of other uses."""
    host = MemoryBudget()
    hosted = hosted_by(host, 40)
    host.memory.source("retained", lambda: 800 * MB)
    assert host.level(70, 1010) == SHEDDING
    assert host.memory.shedding_helps  # 70 of 1010 MB are not enough to get below 930, 110 are
    assert hosted.look(2.0) == SHEDDING and hosted.shedding_helps
    host.memory.source("hosted", lambda: 40 * MB)
    del host.memory._sheddable["hosted"]
    assert not host.memory.shedding_helps and not hosted.shedding_helps


def test_queues_of_a_hosted_node_are_not_shed_for_what_they_do_not_hold() -> None:
    """They would be enough, but most of the memory is unexplained, for example while another node is restored."""
    host = MemoryBudget()
    hosted = hosted_by(host, 300)
    assert host.level(100, 1100) == SHEDDING  # 600 MB are unexplained
    assert hosted.look(2.0) == SHEDDING and hosted.used == host.memory.used == 1100 * MB
    assert not host.memory.shedding_helps and not hosted.shedding_helps


def test_queues_are_not_shed_for_what_they_do_not_hold() -> None:
    budget = MemoryBudget()
    memory = budget.memory
    others = 0
    memory.source("retained", lambda: others * MB)
    assert budget.level(100, 1400) == SHEDDING
    assert not memory.shedding_helps  # 1200 MB are unexplained
    assert budget.level(950) == SHEDDING and memory.shedding_helps
    assert budget.level(820, 1220) == SHEDDING  # an account that is wrong by a quarter
    assert memory.shedding_helps
    others = 900
    assert budget.level(100, 1100) == SHEDDING
    assert not memory.shedding_helps  # all of the queues would not be enough
