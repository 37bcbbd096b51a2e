"""The ``taipan-ctl`` command: sends its arguments to the running node and prints the answer.

taipan-ctl [--data-dir DIR | --config FILE] [--timeout SECONDS] [--json] COMMAND [ARGUMENT]...
taipan-ctl --url URL [--app-file FILE] [--cafile FILE] [--timeout SECONDS] [--json] COMMAND [ARGUMENT]...
taipan-ctl --profile NAME [--timeout SECONDS] [--json] COMMAND [ARGUMENT]...
taipan-ctl --version

Standard library only, and little of it: scripts start the command often. The protocol is in
``socket.py``; a node elsewhere is reached by ``remote.py``. Exit status: 0 done, 1 refused, not found or failed, 2
wrong usage, 3 the node cannot be reached.
"""

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
BROKEN_PIPE: Final = 141
"""The exit status that a shell reports for a program that wrote to a closed pipe."""

SOCKET_NAME: Final = "ctl.sock"
LOCK_NAME: Final = "lock"
"""In the data directory: the process of its node and, on a second line, the node's configuration file."""
FRAMES_TYPE: Final = "application/octet-stream"
"""The media type of frames over HTTP."""
HEAD: Final = 5
"""Number of bytes before the text of each frame: its kind (``o`` output, ``e`` error output, ``f`` a file, ``x`` exit
status) and its length."""
DEFAULT_TIMEOUT: Final = 60.0
_VERSION: Final = "--version"
_HERE: Final = ("--data-dir", "--config")
_ELSEWHERE: Final = ("--url", "--app", "--app-file", "--cafile", "--profile")
OPTIONS: Final = (*_HERE, *_ELSEWHERE, "--timeout")
_WRONG: Final = 108
_NOT_REACHED: Final = 101
"""Codes of the HTTP API, for errors that are shown as JSON."""
_MAX_PATH_LENGTH: Final = 100
"""Maximum length of a Unix socket's address that works on every system, in bytes."""


class CommandLineError(Exception):
    """The command line is invalid. The message is one line: a noun, a name, and the problem, as in all errors."""


class NoNodeAnswers(Exception):
    """No node answers. The message is one line with the socket or the URL."""


class Refused(Exception):
    """The node answers but rejects the command. ``code`` is that of the HTTP API; the message is one line."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


Keep = Callable[[bytes], object]
"""Receives the pieces of a file, or of the output."""


def _drop(data: bytes) -> None:
    """Discard a piece, for a command without a file."""


def show(text: bytes) -> None:
    """Write to the output immediately."""
    sys.stdout.buffer.write(text)
    if text:
        sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit status."""
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except BrokenPipeError:
        # The pipe is closed: the interpreter must not try to flush either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return 130


def _run(arguments: Sequence[str]) -> int:
    as_json = _wants_json(arguments)
    words: list[str] = []
    try:
        options, as_json, words = read_command_line(arguments)
        if words == [_VERSION]:
            return _show_version()
        if words == ["profiles"]:
            from .remote import profiles

            return profiles(as_json)
        if words[:1] == ["backup"]:
            from .backup_commands import run

            return run(options, words, as_json, _ask)
        if words[:1] == ["top"] and not as_json and sys.stdout.isatty():
            from .top_screen import TopScreen

            with TopScreen() as screen:
                return _ask(options, {"args": words, "json": True}, put=screen.take)
        return _ask(options, {"args": words, "json": as_json})
    except CommandLineError as error:
        _complain(str(error), _WRONG, as_json)
        return USAGE
    except Refused as error:
        _complain(str(error), error.code, as_json)
        return FAILED
    except NoNodeAnswers as error:
        if not as_json and (not words or words[0] == "help"):
            return _help(words[1:], DONE if words else USAGE)
        _complain(str(error), _NOT_REACHED, as_json)
        return UNREACHABLE


def _ask(options: Mapping[str, str], request: Mapping[str, object], keep: Keep = _drop, put: Keep = show) -> int:
    """Send the request over HTTP if an option or the environment requests this, otherwise over the socket. ``put``
    writes the output."""
    timeout = _seconds(options.get("--timeout"))
    here = [name for name in _HERE if name in options]
    elsewhere = [name for name in _ELSEWHERE if name in options]
    if here and elsewhere:
        raise CommandLineError(
            f"option {here[0]}: a node is reached over its socket or over HTTP, not both: {elsewhere[0]}"
        )
    if elsewhere or (not here and ("TAIPAN_CTL_URL" in os.environ or "TAIPAN_CTL_PROFILE" in os.environ)):
        from .remote import ask, place_of

        return ask(place_of(options, os.environ), request, timeout, keep, put)
    path = os.path.join(find_data_dir(options, os.environ), SOCKET_NAME)
    with _connect(path, timeout) as node:
        return _converse(node, request, path, keep, put)


def _complain(text: str, code: int, as_json: bool) -> None:
    print(json.dumps({"code": code, "message": text}) if as_json else f"error: {text}", file=sys.stderr)


def _wants_json(argv: Sequence[str]) -> bool:
    """Return whether ``--json`` was given, as far as an invalid command line shows it."""
    words = list(argv)
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def read_command_line(argv: Sequence[str]) -> tuple[dict[str, str], bool, list[str]]:
    """Return the options before the command, whether ``--json`` is anywhere, and the command's words.

    After the word ``--``, ``--json`` is an ordinary word of the command."""
    options: dict[str, str] = {}
    words: list[str] = []
    as_json = False
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            words += rest
            break
        if word == "--json":
            as_json = True
        elif words:
            words.append(word)
        elif word in ("--help", "-h"):
            words.append("help")
        elif word == _VERSION:
            return options, as_json, [_VERSION]
        elif name in OPTIONS:
            if not equals and not rest:
                raise CommandLineError(f"option {name}: the value is missing")
            options[name] = value if equals else rest.pop(0)
        elif word.startswith("-"):
            raise CommandLineError(f"option {shown(word)}: unknown; options of a command come after it")
        else:
            words.append(word)
    for word in words:
        if not _is_text(word):
            raise CommandLineError(f"argument {shown(word)}: is not UTF-8")
    return options, as_json, words


def find_data_dir(options: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Return the data directory of the node. ``--data-dir`` overrides the environment, and the environment overrides
    the file, as for the node."""
    if "--data-dir" in options:
        found = options["--data-dir"]
    elif "TAIPAN__NODE__DATA_DIR" in environ:
        found = environ["TAIPAN__NODE__DATA_DIR"]
    elif "--config" in options:
        found = _of_config(_configured(options["--config"]), options["--config"])
    else:
        found = "data"
    if not found or "\0" in found:
        raise CommandLineError(f"data directory {found!a}: not a valid name")
    return os.path.abspath(found)


def _of_config(data_dir: str, config: str) -> str:
    """Resolve a relative ``data_dir``, which is relative to the directory in which the node was started. Candidates are
    the current directory, the directory of ``config``, and those above it; use the one whose node reports that it runs
    with this file."""
    config = os.path.realpath(config)
    base = os.path.dirname(config)
    places = [os.getcwd(), base]
    while base != os.path.dirname(base):
        base = os.path.dirname(base)
        places.append(base)
    for place in places:
        candidate = os.path.join(place, data_dir)
        try:
            with open(os.path.join(candidate, LOCK_NAME), "rb") as lock:
                named = lock.read(8192).split(b"\n")[1:2]
        except OSError:
            continue
        if named == [os.fsencode(config)]:
            return candidate
    return data_dir


def _configured(file: str) -> str:
    import tomllib

    from taipan.broker.loop.regular_file import MAX_CONFIGURATION, read_regular

    try:
        node = tomllib.loads(read_regular(file, MAX_CONFIGURATION).decode("utf-8")).get("node", {})
    except OSError as error:
        raise CommandLineError(f"file {shown(os.path.abspath(file))}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise CommandLineError(f"file {shown(os.path.abspath(file))}: {error}") from None
    found = node.get("data_dir", "data") if isinstance(node, dict) else None
    if not isinstance(found, str):
        raise CommandLineError(f"file {shown(os.path.abspath(file))}: node.data_dir is not a string")
    return found


def _seconds(text: str | None) -> float:
    """Return the value of ``--timeout``: how long the node may be silent."""
    try:
        seconds = DEFAULT_TIMEOUT if text is None else float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= 86_400.0:
        raise CommandLineError("option --timeout: expected seconds, more than 0 and at most 86400")
    return seconds


def socket_address(path: str) -> tuple[str, int | None]:
    """Return the address to bind or connect to, and a file descriptor to close afterwards: a long path is replaced by
    its open directory."""
    if len(os.fsencode(path)) <= _MAX_PATH_LENGTH:
        return path, None
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/self/fd/{directory}/{os.path.basename(path)}", directory


def _connect(path: str, timeout: float) -> socket.socket:
    node = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory: int | None = None
    try:
        node.settimeout(timeout)
        address, directory = socket_address(path)
        node.connect(address)
    except OSError as error:
        node.close()
        if isinstance(error, FileNotFoundError):
            why = "the socket does not exist; is the node running, and is this its data directory?"
        elif isinstance(error, ConnectionRefusedError):
            why = "the node is not running: nothing listens there"
        else:
            why = error.strerror or str(error)
        raise NoNodeAnswers(f"node at {shown(path)}: cannot be reached: {why}") from None
    finally:
        if directory is not None:
            os.close(directory)
    return node


def _converse(node: socket.socket, request: Mapping[str, object], path: str, keep: Keep, put: Keep) -> int:
    """Send the request and print the answer; return the exit status from the node. Raises NoNodeAnswers,
    BrokenPipeError."""
    try:
        node.sendall(json.dumps(request).encode("ascii") + b"\n")
    except (BrokenPipeError, ConnectionResetError):
        pass  # The node may have sent the reason before it closed.
    except OSError as error:
        raise NoNodeAnswers(f"node at {shown(path)}: did not accept the command: {error}") from None

    def read() -> bytes:
        try:
            return node.recv(65_536)
        except TimeoutError:
            raise NoNodeAnswers(f"node at {shown(path)}: does not respond; --timeout waits longer") from None
        except OSError as error:
            raise NoNodeAnswers(f"node at {shown(path)}: closed the connection: {error.strerror or error}") from None

    status = print_frames(read, keep, put)
    if status is None:
        raise NoNodeAnswers(f"node at {shown(path)}: closed the connection before it had finished")
    return status


def print_frames(read: Callable[[], bytes], keep: Keep, put: Keep = show) -> int | None:
    """Print the frames that ``read`` returns and return the exit status; ``None`` if the answer ends before it."""
    pending = bytearray()
    while data := read():
        pending += data
        while len(pending) >= HEAD:
            end = HEAD + int.from_bytes(pending[1:HEAD], "big")
            if len(pending) < end:
                break
            kind, text = pending[:1], bytes(pending[HEAD:end])
            del pending[:end]
            if kind == b"x":
                sys.stdout.flush()
                return int(text)
            if kind == b"f":
                keep(text)
            elif kind == b"e":
                sys.stderr.buffer.write(text)
                sys.stderr.flush()
            else:
                put(text)
    sys.stdout.flush()
    return None


def _show_version() -> int:
    from taipan.broker.version import product_version

    print(f"taipan-ctl {product_version()}")
    return DONE


def _help(words: list[str], status: int = DONE) -> int:
    """Print the usages. No node is needed, but this is slower, because it imports the node's side of the commands."""
    from .command import UsageError as Unknown
    from .index import help_lines

    try:
        print("\n".join(help_lines(*words[:1])))
    except Unknown as error:
        _complain(error.problem, _WRONG, as_json=False)
        return FAILED
    sys.stdout.flush()
    return status


def _is_text(word: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in word)


def shown(text: str) -> str:
    return text if text.isprintable() else ascii(text)


if __name__ == "__main__":
    sys.exit(main())
