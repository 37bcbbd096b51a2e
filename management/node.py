"""The ``taipan`` command: reads the configuration, builds broker, rule engine and management, and runs them until a
signal arrives. With ``node.workers``, it runs several processes that do so (``workers``). Its other words are those of
``commands``; docs/taipan.md describes them."""

import argparse
import asyncio
import gc
import importlib.metadata
import logging
import os
import resource
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from taipan.broker import compiled
from taipan.broker.observability.log_lines import write_waiting
from taipan.broker.observability.log_text import one_line
from taipan.broker.version import product_version

from . import configuration_check, early_signals
from .commands.index import COMMANDS
from .configuration.config import Loaded, Settings, read
from .configuration.config_document import ConfigError
from .data_dir import DataDir
from .log_lines import setup_logging
from .systemd_notify import keep_watchdog, notify
from .workers.place import WorkerPlace, faults, forget_nats, own_place, retiring, settings_at, wanted, worker_number

if TYPE_CHECKING:
    from .assembly import Assembly
    from .operations.configuration_file import FileOfNode
    from .operations.membership import Membership

logger = logging.getLogger("taipan.management.node")  # also set when run by python -m

# New objects between two collections: a burst of packets creates many short-lived ones.
_GC_THRESHOLD: Final = 50_000

START_AGAIN: Final = 75
"""Status of a node that has to start again at once. The process does so itself, unless the configuration came from
standard input."""

_NO_UVLOOP: Final = "uvloop is faster: pip install uvloop"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, after ``taipan.management.start``. Return the exit status."""
    parser = _parser()
    given = list(sys.argv[1:] if argv is None else argv)
    file = _stray_file(given)
    if file is not None:
        print(
            f"taipan: use --config to specify a configuration file: taipan --config {shlex.quote(file)}",
            file=sys.stderr,
        )
        return 2
    arguments = parser.parse_args(given)
    if arguments.command is not None and arguments.workers is not None:
        parser.error(f"--workers is for running a node, not for {arguments.command}")
    refused = [f"--{option}" for option in arguments.refuses]
    if any(getattr(arguments, option) not in (None, []) for option in arguments.refuses):
        verb = "are" if len(refused) > 1 else "is"
        parser.error(f"{' and '.join(refused)} {verb} for running a node, not for {arguments.command}")
    try:
        if arguments.print_defaults:
            return _print_defaults()
        if arguments.command is not None and not arguments.keeps_signals:
            early_signals.release()  # only nodes stop in order, and only nodes reload
        status: int = arguments.run(arguments)
        return status
    except argparse.ArgumentError as error:
        parser.error(str(error))
    except ConfigError as error:
        _say_last("\n".join(f"taipan: {line}" for line in error.lines))
        return 1
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        early_signals.release()


def _say_last(text: str) -> None:
    """Print why the process ends, after the lines of the log that wait."""
    write_waiting()
    print(text, file=sys.stderr)


def _stray_file(given: list[str]) -> str | None:
    """Return a file name that was given instead of a command, if there is one."""
    rest = iter(given)
    for word in rest:
        if word in ("-c", "--config", "--set"):
            next(rest, None)
        elif not word.startswith("-"):
            return word if word.endswith(".toml") or os.path.isfile(word) else None
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="taipan", description="An MQTT 3.1, 3.1.1 and 5.0 broker.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"taipan {product_version()}")
    parser.add_argument(
        "--print-defaults", action="store_true", help="print every setting with its default value as TOML"
    )
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="configuration file (TOML); without it, the defaults apply and the node listens on loopback",
    )
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[],
        help="set one key, such as listeners.0.bind=127.0.0.1:1884; overrides the file and the environment",
    )  # fmt: skip
    parser.add_argument(
        "--workers",
        metavar="N",
        help='how many processes run as one broker; "auto": one for each processor (node.workers)',
    )
    parser.set_defaults(run=_run, refuses=(), keeps_signals=False, parser=parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for add_to in COMMANDS:
        add_to(commands)
    return parser


def _print_defaults() -> int:
    from .configuration.defaults import as_toml

    print(as_toml(), end="", flush=True)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    early_signals.keep()
    overrides = arguments.set + ([] if arguments.workers is None else [f"node.workers={arguments.workers}"])
    place = own_place()

    def read_settings(again: bool = False, contents: bytes | None = None) -> Loaded:
        loaded = read(arguments.config, overrides, again=again, contents=contents)
        return loaded if place is None else loaded._replace(settings=settings_at(place, loaded.settings))

    loaded = read_settings()
    setup_logging(loaded.settings.log, worker=worker_number(place))
    if place is None and (wanted(loaded.settings) > 1 or retiring(loaded.settings)):
        return _supervise(loaded.settings, arguments.config)
    logger.info("compiled_modules status=%s", compiled.outcome)
    _raise_file_limit()
    factory = _loop_factory()
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            status = runner.run(_serve(loaded, arguments.config, partial(read_settings, True), place))
    except KeyboardInterrupt:  # a second Ctrl-C
        return 130
    if status == START_AGAIN and arguments.config != "-":
        _start_again()
    return status


def _start_again() -> None:
    """Replace this process by one with the same command, and the same number for whoever watches it."""
    detail = "another node runs in place of this one, which starts with an empty store"
    logger.warning("starting_again detail=%s", detail)
    for handler in logging.getLogger().handlers:
        handler.flush()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _supervise(settings: Settings, config: str | None) -> int:
    """Run the workers of ``node.workers``. Raises ConfigError."""
    from .workers import supervisor  # imported here, because a node without workers does not need it

    wrong = faults(settings)
    if config == "-":
        wrong.append("node.workers: --config -: every worker reads the configuration; use a file")
    if wrong:
        raise ConfigError(*wrong)
    return supervisor.run(settings, [sys.executable, "-m", "taipan", *sys.argv[1:]], config)


async def _serve(loaded: Loaded, config: str | None, reread: Callable[..., Loaded], place: WorkerPlace | None) -> int:
    """``reread``: reads the configuration again; with an argument, as if the file had these contents."""
    settings = loaded.settings
    # Imported here, because `taipan check` and `taipan hash-password` do not need it.
    from .assembly import Assembly

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    ready = reload_asked = replaced = False

    def on_stop(number: signal.Signals) -> None:
        logger.info("stopping signal=%s", number.name)
        # A further signal ends the process immediately.
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)
        stop.set()

    def on_replaced() -> None:
        nonlocal replaced
        replaced = True
        stop.set()

    def on_reload() -> None:
        nonlocal reload_asked
        reload_asked = not ready  # then it reloads as soon as there is a node
        if ready and not stop.is_set():
            _reload(node, reread, place)

    for number in early_signals.STOPS:
        loop.add_signal_handler(number, on_stop, number)
    loop.add_signal_handler(signal.SIGHUP, on_reload)
    for number in early_signals.kept():
        if number is signal.SIGHUP:
            on_reload()
        else:
            on_stop(number)
            return 0

    try:
        data_dir = DataDir(settings.broker.node.data_dir, config)
        if place is None:
            forget_nats(settings.broker.node.data_dir)
        node = Assembly(loaded)
        node.server.cluster.on_replaced.append(on_replaced)
        node.engine.prepare()
        if config is not None and config != "-" and node.management is not None:
            node.management.operations.configuration_file.use(_file_of(node, config, reread, place))
        started = await _start(node, stop)
    except Exception as error:
        if replaced:  # since it had read its record
            data_dir.close()
            return START_AGAIN
        # Whatever the error is, the operator needs one line; the traceback is for log level debug.
        logger.debug("start_failed", exc_info=True)
        what = one_line(str(error) or type(error).__name__)
        _say_last(f"taipan: cannot start: {what}{_way_out(error, settings)}")
        return 1
    if not started:
        data_dir.close()
        logger.info("stopped")
        return START_AGAIN if replaced else 0
    _tune_collector()
    ready = True
    server, management = node.server, node.management
    assert management is not None
    listening = " ".join(f"{listener.name}={listener.type}:{listener.listen_on}" for listener in server.listeners)
    if settings.management.enabled:
        listening += f" management={management.url}"
    if settings.dashboard.enabled or (settings.management.enabled and settings.dashboard.on_management):
        listening += f" dashboard={management.dashboard_url}"
    print(f"taipan ready version={server.version} node={settings.broker.node.name} {listening}", flush=True)
    notify("READY=1")
    tasks = [asyncio.create_task(keep_watchdog())]
    if place is not None and place.retires:
        tasks.append(asyncio.create_task(_retire(management.operations.membership, stop)))
    if reload_asked:
        on_reload()
    await stop.wait()
    if not replaced:  # the process goes on
        notify("STOPPING=1")
    await node.stop()
    for task in tasks:
        task.cancel()
    data_dir.close()
    logger.info("stopped")
    return START_AGAIN if replaced else 0


async def _retire(membership: "Membership", stop: asyncio.Event) -> None:
    """End this worker as soon as it has nothing left."""
    from .workers.retirement import retire  # imported here, because only a worker that is no longer wanted needs it

    await retire(membership)
    stop.set()


async def _start(node: "Assembly", stop: asyncio.Event) -> bool:
    """Start the node. Return False if it had to stop before that, and has ended. A start may wait for other
    machines."""
    starting, stopping = asyncio.create_task(node.start()), asyncio.create_task(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
        if starting.cancelled():
            return False
    starting.result()
    return True


def _way_out(error: Exception, settings: Settings) -> str:
    """Return how to use another address, if another process uses this one."""
    taken = getattr(error, "taken", "")
    if not taken:
        return ""
    all_binds = configuration_check.datagram_binds(settings) | configuration_check.binds(settings)
    key = next(key for key, bind in all_binds.items() if bind == taken)
    return f"; {configuration_check.other_address(key, taken)}"


def _reload(node: "Assembly", reread: Callable[[], Loaded], place: WorkerPlace | None) -> None:
    """Apply the current contents of the file. Errors in it are logged, and everything stays as it was."""
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
    assert node.management is not None
    operations = node.management.operations
    try:
        old = {each.key: each.value for each in operations.configuration.settings_here("")}
        _apply(node, reread(), place)
    except Exception as error:
        # A request that cannot be fulfilled is a ConfigError or ValueError; any other error is a bug.
        known = isinstance(error, (ConfigError, ValueError)) and not logger.isEnabledFor(logging.DEBUG)
        logger.error("reload_failed error=%s", error, exc_info=not known)
    else:
        new = {each.key: each.value for each in operations.configuration.settings_here("")}
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        # The setting is a value here, not a key: words in a key would mask the value, and secrets are already masked.
        before, after = ([{"setting": key, "value": each.get(key)} for key in changed] for each in (old, new))
        operations.audit.add("reload", "", "", "reload", "", before, after)
    notify("READY=1")


def _check(node: "Assembly", loaded: Loaded) -> None:
    """Check everything that can be checked before ``_apply``. Raises ConfigError or ValueError."""
    assert node.management is not None
    settings = loaded.settings
    node.management.check(settings.management, settings.history, settings.dashboard)
    node.engine.check(settings.ruleengine)


def _apply(node: "Assembly", loaded: Loaded, place: WorkerPlace | None) -> None:
    """Make these settings the effective ones, or raise and change nothing."""
    assert node.management is not None and node.expiry is not None
    settings = loaded.settings
    _check(node, loaded)
    node.server.reload(settings.broker)
    node.management.reload(settings.management)
    node.expiry.reload(settings)
    setup_logging(settings.log, worker=worker_number(place))
    node.management.operations.configuration.use(loaded)
    logger.info("reloaded")


def _file_of(
    node: "Assembly", config: str, read_contents: Callable[[bytes], Loaded], place: WorkerPlace | None
) -> "FileOfNode":
    """Return the file whose settings can be changed while the node runs. Worker 1 has the
    management server; the supervisor makes the other workers read the file."""
    from .operations.configuration_file import FileOfNode  # imported here, as everything above the settings

    supervisor = os.getppid()

    def reload_others() -> None:
        if place is not None and os.getppid() == supervisor:
            os.kill(supervisor, signal.SIGHUP)

    return FileOfNode(
        config,
        read_contents,
        partial(_check, node),
        lambda loaded: _apply(node, loaded, place),
        reload_others,
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        logger.info("event_loop name=asyncio detail=%s", _NO_UVLOOP)
        return asyncio.new_event_loop
    logger.info("event_loop name=uvloop version=%s", importlib.metadata.version("uvloop"))
    return uvloop.new_event_loop


def _raise_file_limit() -> None:
    """Raise the limit of file descriptors to the maximum that the system allows, because each client uses one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            logger.warning("file_limit_not_raised soft=%s hard=%s error=%s", soft, hard, error)


def _tune_collector() -> None:
    """Exclude the objects that exist after the start from all later collections, because they stay."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 10, 10)


if __name__ == "__main__":
    sys.exit(main())
