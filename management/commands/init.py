"""``taipan init [DIR]``: writes the commented configuration and, if requested, a user and certificates."""

import argparse
import datetime
import getpass
import importlib.resources
import re
import shlex
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.access.random_secret import generate
from taipan.broker.config import parse_bind
from taipan.broker.listener_kinds import LISTENER_KINDS
from taipan.broker.session.client_info import authority

from ..configuration.config_document import ConfigError
from ..configuration.defaults import toml_value
from ..configuration.setting_notes import samples
from ..secret_line import secret_line
from . import new_files

CONFIG: Final = "taipan.toml"
TLS: Final = "tls"
_PAGE_OF_KEYS: Final = "docs/configuration.md explains each key in more detail."
_PAGE: Final = re.compile(r" \(docs/[\w/-]+\.md\)|: docs/[\w/-]+\.md(?=\.)")
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


@dataclass
class Wanted:
    """``address``: the address that clients connect to. ``user``: the first user, empty: none. ``tls_names``: names in
    the certificate, empty: no TLS. ``anonymous``: whether clients without a user are accepted from other machines."""

    address: str = "127.0.0.1"
    user: str = ""
    password: str = ""
    tls_names: list[str] = field(default_factory=list)
    anonymous: bool = False

    @property
    def loopback(self) -> bool:
        return self.address in _LOOPBACK


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "init", help="write a commented configuration, optionally with a first user and certificates",
        description="Writes DIR/taipan.toml and, with --tls, DIR/tls. On a terminal, asks for whatever the options "
        "leave open.",
    )  # fmt: skip
    parser.add_argument(
        "directory", metavar="DIR", nargs="?", default=".", help="target directory (default: the current directory)"
    )
    parser.add_argument(
        "--address", metavar="HOST", help="address to listen on (default: 127.0.0.1; all addresses: 0.0.0.0)"
    )
    parser.add_argument(
        "--user",
        metavar="NAME",
        help="create a first user; the password is read from standard input, or generated and printed",
    )
    parser.add_argument(
        "--tls",
        metavar="NAME",
        nargs="*",
        help="create a private authority and a TLS certificate for these names (default: the host's own)",
    )
    parser.add_argument("--anonymous", action="store_true", help="accept clients without a username, from any address")
    parser.add_argument("--yes", action="store_true", help="do not ask; use the defaults")
    parser.set_defaults(run=run, refuses=("config", "set"))


def run(arguments: argparse.Namespace) -> int:
    """Write the files and print the next steps. Raises ConfigError if nothing was written."""
    directory = Path(arguments.directory).absolute()
    given = (arguments.address, arguments.user, arguments.tls)
    asks = sys.stdin.isatty() and not arguments.yes and not arguments.anonymous and given == (None, None, None)
    try:
        wanted = _asked() if asks else _of_options(arguments)
        files = written(directory, wanted, datetime.datetime.now(datetime.UTC))
    except (EOFError, KeyboardInterrupt):
        raise ConfigError("nothing was written") from None
    try:
        new_files.write(directory, files)
    except new_files.NotWritten as error:
        raise ConfigError(str(error)) from None
    _tell(directory, wanted, [str(directory / name) for name in files])
    return 0


def _of_options(arguments: argparse.Namespace) -> Wanted:
    wanted = Wanted(arguments.address or "127.0.0.1", arguments.user or "", anonymous=arguments.anonymous)
    if arguments.user is not None:
        wanted.password = _password(arguments.user)
    if arguments.tls is not None:
        wanted.tls_names = arguments.tls or _own_names(wanted.address)
    return wanted


def _asked() -> Wanted:
    wanted = Wanted(input("Address to listen on, 0.0.0.0 for all [127.0.0.1]: ").strip() or "127.0.0.1")
    none = "none, clients need no password" if wanted.loopback else "clients on other machines need a user"
    wanted.user = input(f"First user [{none}]: ").strip()
    if wanted.user:
        wanted.password = _password(wanted.user)
    if input("TLS with a private authority, for trying? [y/N]: ").strip().lower() in ("y", "yes"):
        own = _own_names(wanted.address)
        wanted.tls_names = input(f"Names of this server [{' '.join(own)}]: ").split() or own
    return wanted


def _password(user: str) -> str:
    """Read the password from the terminal or standard input; generate a random one if there is none."""
    if not sys.stdin.isatty():
        password = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    else:
        password = getpass.getpass(f"Password of {user} [a random one]: ")
        if password and getpass.getpass("Again: ") != password:
            raise ConfigError("the two passwords differ")
    return password or generate()


def _own_names(address: str) -> list[str]:
    names = [socket.gethostname(), "localhost", "127.0.0.1"]
    if address not in ("0.0.0.0", "::", *names):
        names.insert(0, address)
    return list(dict.fromkeys(names))


def written(directory: Path, wanted: Wanted, now: datetime.datetime) -> dict[str, tuple[bytes, int]]:
    """Return the files by their paths below ``directory``, with their modes. Raises ConfigError."""
    if not wanted.loopback and not wanted.user and not wanted.anonymous:
        raise ConfigError(
            f"{wanted.address} accepts connections from other machines: --user NAME, or --anonymous to accept"
            " all clients"
        )
    try:
        parse_bind(authority(wanted.address, 1883))
    except ValueError:
        raise ConfigError(f"--address {wanted.address}: not an address") from None
    if not wanted.user.isprintable():
        raise ConfigError("--user: the name is not printable")
    files: dict[str, tuple[bytes, int]] = {}
    if wanted.tls_names:
        from . import private_authority  # imported here: cryptography is slow to import

        try:
            made = private_authority.make(wanted.tls_names, now)
        except (ValueError, UnicodeError):
            raise ConfigError(
                f"--tls {' '.join(wanted.tls_names)}: not all of these are hostnames or addresses"
            ) from None
        files = {
            f"{TLS}/ca.pem": (made.authority, 0o644),
            f"{TLS}/ca.key": (made.authority_key, 0o600),
            f"{TLS}/server.pem": (made.server, 0o644),
            f"{TLS}/server.key": (made.server_key, 0o600),
        }
    return files | {CONFIG: (configuration(directory, wanted).encode("utf-8"), 0o600)}


def configuration(directory: Path, wanted: Wanted) -> str:
    """Return the template that comes with Taipan, with the requested values."""
    text = template()
    text = _put(text, 'data_dir = "data"', f"data_dir = {toml_value(str(directory / 'data'))}")
    for kind in ("tcp", "ws"):
        port = LISTENER_KINDS[kind].port
        text = _put(text, f'bind = "127.0.0.1:{port}"', f"bind = {toml_value(authority(wanted.address, port))}")
    if wanted.tls_names:
        tables = [_tls_listener(directory, wanted, name, kind) for name, kind in (("tls", "ssl"), ("secure", "wss"))]
        text = _put(
            text, "# With certificates: TLS on port 8883.", "".join(tables) + "# With certificates: TLS on port 8883."
        )
    if wanted.anonymous and not wanted.loopback:
        text = _put(text, "#allow_anonymous = true", "allow_anonymous = true")
    if wanted.user:
        user = f"[[access.users]]\nusername = {toml_value(wanted.user)}\n"
        user += f'password_hash = "{ScryptHash.create(wanted.password.encode("utf-8"))}"\n\n'
        text = _put(text, "# Access rules, tables [[access.rules]]", user + "# Access rules, tables [[access.rules]]")
    return text


def template() -> str:
    """Return the commented configuration as it is shipped, with the tables of access sources, and without references to
    pages that only exist in Taipan's sources."""
    text = (importlib.resources.files("taipan.config") / CONFIG).read_text("utf-8") + samples()
    text = _put(text, _PAGE_OF_KEYS, "taipan --print-defaults prints its type, too.")
    return _PAGE.sub("", text)


def _tls_listener(directory: Path, wanted: Wanted, name: str, kind: str) -> str:
    bind = toml_value(authority(wanted.address, LISTENER_KINDS[kind].port))
    certfile, keyfile = (toml_value(str(directory / TLS / file)) for file in ("server.pem", "server.key"))
    return (
        f'[[listeners]]\nname = "{name}"\ntype = "{kind}"\nbind = {bind}\n'
        f"[listeners.tls]\ncertfile = {certfile}\nkeyfile = {keyfile}\n\n"
    )


def _put(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"the template has no single {old}"
    return text.replace(old, new)


def _tell(directory: Path, wanted: Wanted, files: list[str]) -> None:
    print("wrote", *files, sep="\n  ")
    if wanted.user:
        print(secret_line("MQTT clients:", wanted.user, wanted.password))
    host = "127.0.0.1" if wanted.address in ("0.0.0.0", "::") else wanted.address
    client = ["mosquitto_sub"] + ([] if host == "127.0.0.1" else ["-h", host])
    if wanted.tls_names:
        ca = str(directory / TLS / "ca.pem")
        client = ["mosquitto_sub", "-h", wanted.tls_names[0], "-p", str(LISTENER_KINDS["ssl"].port), "--cafile", ca]
    if wanted.user:
        client += ["-u", wanted.user, "-P", wanted.password]
    print("start it: ", shlex.join(["taipan", "--config", str(directory / CONFIG)]))
    print("subscribe:", shlex.join([*client, "-t", "garden/#"]))
