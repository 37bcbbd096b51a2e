"""``taipan install-service``: writes a systemd unit for this ``taipan``, and a configuration if there is none."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from ..configuration.config_document import ConfigError
from ..configuration.defaults import toml_value
from . import init, new_files

UNIT: Final = Path("/etc/systemd/system/taipan.service")
CONFIG: Final = Path("/etc/taipan/taipan.toml")
DATA: Final = "/var/lib/taipan"
_HOMES: Final = ("/home/", "/root/", "/run/user/")
_PLAIN: Final = re.compile(r"[\w./+@:-]+")

_TEMPLATE: Final = """\
# Created by: taipan install-service. Put your own changes into a separate file: systemctl edit taipan
[Unit]
Description=Taipan MQTT broker
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
NotifyAccess=main
ExecStart={program} --config {config}
# A small system may have no /bin/kill.
ExecReload=/bin/sh -c 'kill -HUP $MAINPID'
Restart=on-failure
RestartSec=1
# The node reports every half of this time that its event loop runs.
WatchdogSec=30
# Time for Wills, rules and pending writes.
TimeoutStopSec=90
# Each client is a file descriptor.
LimitNOFILE=200000

# A user that exists only while the node runs; an existing user of this name is used.
DynamicUser=yes
User=taipan
StateDirectory=taipan
StateDirectoryMode=0700
WorkingDirectory={data}
UMask=0077

# The node needs no other part of the system.
CapabilityBoundingSet=
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
DevicePolicy=closed
PrivateUsers=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "install-service", help="install a systemd unit (as root)",
        description=f"Writes {UNIT}, and the configuration if it does not exist. Does not start the service.",
    )  # fmt: skip
    parser.add_argument(
        "--file", metavar="FILE", type=Path, default=CONFIG, help=f"configuration file (default: {CONFIG})"
    )
    parser.add_argument("--unit", metavar="FILE", type=Path, default=UNIT, help=f"path of the unit (default: {UNIT})")
    parser.add_argument("--print", action="store_true", help="print the unit without writing anything")
    parser.add_argument("--force", action="store_true", help="replace an existing unit")
    parser.set_defaults(run=run, refuses=("config", "set"))


def run(arguments: argparse.Namespace) -> int:
    """Write the unit. Raises ConfigError if nothing was written."""
    config: Path = arguments.file.absolute()
    text = unit(program(), config)
    if arguments.print:
        print(text, end="")
        return 0
    target: Path = arguments.unit.absolute()
    there = target.exists()
    if there and not arguments.force and target.read_text("utf-8") != text:
        raise ConfigError(f"{target} already exists with other contents: --force replaces it")
    try:
        if not config.exists():
            contents = init.template().replace('data_dir = "data"', f"data_dir = {toml_value(DATA)}")
            new_files.write(config.parent, {config.name: (contents.encode("utf-8"), 0o644)})
            print(f"wrote {config}")
        if there:
            target.write_text(text, "utf-8")
        else:
            new_files.write(target.parent, {target.name: (text.encode("utf-8"), 0o644)})
    except new_files.NotWritten as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None
    print(f"wrote {target}")
    if target == UNIT and os.path.isdir("/run/systemd/system"):
        subprocess.run(["systemctl", "daemon-reload"], check=False)
    print("start it, now and with the machine: systemctl enable --now taipan")
    return 0


def program() -> str:
    """Return the ``taipan`` that runs this. Raises ConfigError if a service cannot use it."""
    beside = Path(sys.prefix, "bin", "taipan")
    found = str(beside) if beside.exists() else shutil.which("taipan")
    if found is None:
        raise ConfigError(f"taipan is not in {Path(sys.prefix, 'bin')}: install Taipan's wheel there")
    real = os.path.realpath(found)
    home = next((each for each in _HOMES if real.startswith(each) or found.startswith(each)), None)
    if home is not None:
        raise ConfigError(
            f"{found} is below {home}, which is hidden from services. Install for the whole machine: "
            "python3 -m venv /opt/taipan && /opt/taipan/bin/pip install 'WHEEL[all]'"
        )
    return found


def unit(program: str, config: Path) -> str:
    """Return the unit. Raises ConfigError for a path that systemd would interpret differently."""
    for path in (program, str(config)):
        if not _PLAIN.fullmatch(path):
            raise ConfigError(f"{path}: a unit cannot contain a path with spaces or special characters")
    return _TEMPLATE.format(program=program, config=config, data=DATA)
