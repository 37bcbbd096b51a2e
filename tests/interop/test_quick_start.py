"""What docs/quick-start.md has its reader write and run, as it is printed.

Only ports and the name of the configuration differ.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.absent import absent
from tests.support.node import free_port

from .test_tutorial import BIN, ROOT, STARTS_IN, Lines, Terminal, eventually, what_is_printed_wants

pytestmark = [pytest.mark.timeout(120)]

PORTS = {printed: str(free_port()) for printed in ("1883", "8083", "8081", "18083", "8883", "8084")}


def blocks(section: str) -> list[str]:
    text = (ROOT / "docs" / "quick-start.md").read_text("utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"(?ms)^```(?:toml)?\n(.*?)^```$", text)


def here(text: str) -> str:
    """The text with the ports, programs and files of this test, on loopback."""
    text = re.sub(rf"(?<![.\d])({'|'.join(PORTS)})\b", lambda found: PORTS[found[0]], text)
    others = {".venv/bin/": "", "config/taipan.toml": "my.toml", "0.0.0.0": "127.0.0.1"}
    for printed, other in others.items():
        text = text.replace(printed, other)
    return text


@contextmanager
def running(command: str, directory: Path) -> Iterator[Lines]:
    """A node that a command line starts, once it is ready."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TAIPAN_")}
    log = directory / "node.log"
    with log.open("ab") as errors:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=directory,
            env={**environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        )  # fmt: skip
    lines = Lines(process)
    try:
        lines.until(lambda line: line.startswith("taipan ready"), STARTS_IN)
        yield lines
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log.read_text()}") from None
    finally:
        lines.end()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    what_is_printed_wants()
    for program in ("bash", "openssl"):
        if shutil.which(program) is None:
            absent(program)
    return tmp_path


@pytest.fixture
def terminal(directory: Path) -> Iterator[Terminal]:
    opened = Terminal(directory, {"1883": PORTS["1883"]})
    opened.run(f"PATH={BIN}:$PATH")
    yield opened
    opened.end()


def test_a_user_and_tls(directory: Path, terminal: Terminal) -> None:
    """A user, a reload, a certificate, and a message over TLS."""
    file = directory / "my.toml"
    text = here((ROOT / "config" / "taipan.toml").read_text("utf-8"))
    hash_password, zone, check = blocks("4. Add a user")
    certificate, listeners, messages = blocks("5. Listen on the network, with TLS")
    changed = zone.splitlines()[1]
    file.write_text(text)

    with running("taipan --config my.toml", directory) as node:
        user = terminal.run(f"{here(hash_password).strip()} <<<secret")
        text = text.replace(f"\n#{changed.replace('false', 'true')}\n", f"\n{changed}\n") + "\n".join(user) + "\n"
        file.write_text(text)
        process = "$(pgrep -f 'taipan --config')"
        assert process in check
        assert "my.toml: ok" in terminal.run(here(check).replace(process, str(node.process.pid)))
        without_user = "mosquitto_pub -t garden/temperature -m 21.5 2>&1 || true"
        eventually(lambda: "Connection error: Connection Refused: not authorised." in terminal.run(without_user))

    terminal.run(certificate)
    file.write_text(text + here(listeners))
    subscribe, publish = here(messages).splitlines()
    with running("taipan --config my.toml", directory):
        terminal.run(f"{subscribe} &")

        def arrives() -> bool:
            """Publish again: the first message may be published before the subscription."""
            terminal.run(publish)
            return "garden/temperature 21.5" in terminal.lines

        eventually(arrives)
        wrong = terminal.run(f"{publish.replace('secret', 'wrong')} 2>&1 || true")
        assert "Connection error: Connection Refused: bad user name or password." in wrong
