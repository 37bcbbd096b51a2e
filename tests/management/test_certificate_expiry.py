"""Certificates that end: ``taipan check`` refuses those that are no longer valid, an alarm comes 30 days before."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taipan.broker.observability.alarms import RaisedAlarms
from taipan.management.certificate_expiry import ExpiryAlarms
from taipan.management.configuration.config import load
from taipan.management.configuration.served_certificates import served_certificates
from taipan.management.node import main
from tests.support.certificates import Certificates
from tests.support.clock import Clock

DAY = 86_400.0


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def configure(directory: Path, certfile: str, keyfile: str, more: str = "") -> str:
    file = directory / "tls.toml"
    file.write_text(
        f'[[listeners]]\nname = "a"\ntype = "ssl"\nbind = "127.0.0.1:0"\n[listeners.tls]\n'
        f'certfile = "{certfile}"\nkeyfile = "{keyfile}"\n{more}'
    )
    return str(file)


def checked(file: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    status = main(["check", file])
    said = capsys.readouterr().err.splitlines()
    assert status == (1 if said else 0)
    return said


def test_check_refuses_an_expired_certificate_and_tells_what_else_is_wrong(
    certificates: Certificates, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expired, key = certificates.issue("old", expired=True)
    more = '[[ruleengine.functions]]\nmodule = "no_such.module"\n'
    first, second = checked(configure(tmp_path, expired, key, more), capsys)
    assert first.startswith(f"taipan: listeners.0.tls.certfile: the certificate in '{expired}' expired on 20")
    assert second == ("taipan: ruleengine.functions: module no_such.module: the module is not on the Python path")
    good = certificates.issue("new")
    assert checked(configure(tmp_path, *good), capsys) == []


def test_check_looks_at_server_names_and_management(
    certificates: Certificates, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, good_key = certificates.issue("new")
    expired, key = certificates.issue("old", expired=True)
    more = f'server_names = {{ "x.y" = {{ certfile = "{expired}", keyfile = "{key}" }} }}\n'
    more += f'[management.tls]\ncertfile = "{expired}"\nkeyfile = "{key}"\n'
    said = checked(configure(tmp_path, good, good_key, more), capsys)
    assert [line.split(": ")[1] for line in said] == [
        "listeners.0.tls.server_names.x.y.certfile",
        "management.tls.certfile",
    ]


def test_an_alarm_30_days_before_the_end(certificates: Certificates, tmp_path: Path) -> None:
    sweeps: list[Any] = []
    clock = Clock(certificates.now.timestamp())
    server: Any = SimpleNamespace(
        clock=clock,
        alarms=RaisedAlarms("n@h", lambda message: None, clock),
        ticker=SimpleNamespace(every=lambda seconds, sweep: sweeps.append((seconds, sweep))),
    )
    settings = load(configure(tmp_path, *certificates.issue("localhost", days=40)), environ={})
    assert [each.setting for each in served_certificates(settings)] == ["listeners.0.tls.certfile"]
    days = [30.0]
    expiry = ExpiryAlarms(server, settings, lambda: days[0] * DAY)
    ((interval, sweep),) = sweeps
    assert interval == 3600
    clock.advance(9 * DAY)
    sweep(clock.now())
    assert server.alarms.active == {}
    clock.advance(1.5 * DAY)
    sweep(clock.now())
    (alarm,) = server.alarms.active.values()
    assert alarm.name == "certificate/listeners.0.tls.certfile/expires"
    assert alarm.details["setting"] == "listeners.0.tls.certfile"
    sweep(clock.now())
    assert len(server.alarms.active) == 1
    for other, count in ((20.0, 0), (30.0, 1)):  # an operator sets another threshold
        days[0] = other
        expiry.look()
        assert len(server.alarms.active) == count
    # Another file alone changes nothing: what is served is what was loaded.
    certificates.issue("localhost", days=400)
    sweep(clock.now())
    assert len(server.alarms.active) == 1
    expiry.reload(settings)
    assert server.alarms.active == {}
    assert [each.name for each in server.alarms.history] == ["certificate/listeners.0.tls.certfile/expires"] * 2
