"""Compiles the hot path with mypyc into ``build/compiled`` where that is not fresh: ``make compile``.

The sources are compiled as they stand and nothing is put beside them. ``taipan.broker.compiled`` takes what is built
here, as long as the sources are still these. With ``--try``, as ``make run`` and ``make bench`` have it, a machine that
cannot is told in one line that Taipan will run interpreted, and that is no failure. With ``--beside``, as the first
``make run`` has it, the same is done at low priority beside the node that started it, and given up when that ends.
``--check``, as ``make wheel`` has it, only says whether this machine can. ``setup.py`` builds wheels by this module.
"""

import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from taipan.broker.compiled import BUILT, MANIFEST, ROOT, SUFFIX, Compiled

TARGET = BUILT
WORK = ROOT / "build" / "mypyc"

# The lowest packages, and what a message passes above them. Left out: what subclasses a class that is not compiled,
# what tests replace by another class (the clock, the write-ahead log), and whatever runs seldom.
PACKAGES = ("mqtt", "session", "routing")
MODULES = (
    "access/acl",
    "access/acl_cache",
    "access/authentication",
    "access/authorization",
    "access/configuration/rules",
    "access/control",
    "access/decision",
    "core/before_login",
    "core/broker",
    "core/delayed_topic",
    "core/outcome",
    "core/retained_matches",
    "core/retaining",
    "core/runs",
    "core/session_life",
    "core/subscription_plan",
    "loop/budget",
    "loop/timers",
    "persistence/durability",
    "persistence/group_commit",
    "persistence/node_journal",
    "persistence/session_journal",
    "persistence/delivery_records",
    "persistence/message_holders",
    "persistence/paging",
    "persistence/record_mapping",
    "persistence/stored_message",
    "observability/client_events",
    "observability/log_lines",
    "observability/log_text",
    "observability/metrics",
    "observability/top/frequent_counts",
    "observability/top/loudest",
    "observability/top/recent_troubles",
    "observability/top/topic_sample",
    "cluster/links/link_frame",
    "cluster/links/link_receiver",
    "cluster/links/link_writer",
    "cluster/nats/protocol",
    "cluster/shared/retained",
    "cluster/shared/retained_order",
    "cluster/shared/retained_values",
    "cluster/shared/rows",
    "cluster/shared/shared_map",
    "cluster/shared/unwritten",
    "channel/acknowledgements",
    "channel/authentication",
    "channel/authorization",
    "channel/closing",
    "channel/connect",
    "channel/session_setup",
    "channel/outbound_writer",
    "channel/publish",
    "channel/subscribe",
    "channel/dispatcher",
    "channel/context",
    "channel/identity",
    "channel/channel",
    "transport/acceptor",
    "transport/memory_guard",
    "transport/poller",
    "transport/polled_tls",
    "transport/rate_limits",
    "transport/websocket_frames",
    "transport/connection_writer",
    "transport/connection_pauses",
    "transport/connection_reader",
    "transport/connection",
    "store/restored",
    "client_sweep",
)
# Of these, what no message passes, or only one whose way is not known yet: the C compiler spends a third less on them.
# What the profiles in docs/profiles name for a message is not among them.
SELDOM = (
    "access/acl",
    "access/authentication",
    "access/authorization",
    "access/configuration/rules",
    "access/control",
    "access/decision",
    "channel/authentication",
    "channel/closing",
    "channel/connect",
    "channel/identity",
    "channel/session_setup",
    "channel/subscribe",
    "cluster/shared/rows",
    "core/before_login",
    "core/delayed_topic",
    "core/subscription_plan",
    "mqtt/connect_decoder",
    "mqtt/constants",
    "mqtt/errors",
    "mqtt/reason_codes",
    "mqtt/subscribe_decoder",
    "observability/client_events",
    "observability/log_lines",
    "observability/log_text",
    "observability/metrics",
    "persistence/paging",
    "persistence/record_mapping",
    "routing/deadlines",
    "session/client_info",
    "session/limits",
    "session/protocols",
    "session/registry",
)
# What mypy does not read, and takes for Any: ``taipan`` itself, which imports the whole node, and packages of others
# from which nothing compiled takes a type. They are half of its work, and the C files are the same without them.
# make types checks against all of them.
NOT_READ = ("taipan", "aiohttp.*", "bcrypt.*", "cryptography.*", "jwt.*", "nkeys.*", "websockets.*", "yarl.*")


def sources() -> list[str]:
    """What is compiled, relative to the root."""
    files = [file for package in PACKAGES for file in sorted((ROOT / "broker" / package).glob("*.py"))]
    files += [ROOT / "broker" / f"{name}.py" for name in MODULES]
    return [f"taipan/{file.relative_to(ROOT).as_posix()}" for file in files if file.name != "__init__.py"]


def missing() -> str | None:
    """What this machine lacks for it; None: nothing."""
    what, packages = [], []
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        what.append(f"no C compiler ({compiler})")
        packages.append("gcc libc6-dev")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        what.append("no Python.h")
        packages.append("python3-dev")
    return f"there is {' and '.join(what)} (as root: apt-get install -y {' '.join(packages)})" if what else None


def extensions(work: Path) -> list[Any]:
    """setuptools' extensions of the hot path; their C files are written under ``work``. Run from the root.

    Ends the process if mypy complains.
    """
    # Imported here: where everything is fresh, this has to be quick.
    from mypyc.build import mypycify

    made: list[Any] = mypycify(
        ["--config-file", str(configure_mypy(work)), *sources()],
        opt_level="3",
        debug_level="0",
        target_dir=str(work),
        multi_file=True,
    )
    return made


def configure_mypy(work: Path) -> Path:
    """A file of settings that has mypy not read NOT_READ."""
    file = work / "mypy.ini"
    file.parent.mkdir(parents=True, exist_ok=True)
    # no-redef: what is Any is defined again where an import is tried and another one stands in for it.
    # import-untyped: nkeys has no types.
    settings = (
        f"[mypy]\ndisable_error_code = no-redef, import-untyped\n[mypy-{','.join(NOT_READ)}]\nfollow_imports = skip\n"
    )
    file.write_text(settings, encoding="utf-8")
    return file


def is_seldom(source: str) -> bool:
    """Whether a C file is that of a module of SELDOM, by the name that mypyc gives it."""
    return Path(source).stem.removeprefix("__native_taipan___broker___").replace("___", "/") in SELDOM


class HeadersReadOnce:
    """Has the C compiler read the headers that C files share once: that is up to half of its work otherwise.

    What was read is removed afterwards: a compiler would take it for a header that has changed since. A compiler that
    cannot do this compiles as ever.
    """

    def __init__(self, compiler: Any) -> None:
        self._compiler = compiler
        self._directory = WORK / "read-once"
        self.remove()  # of a build that was killed
        self._lock = Lock()
        self._read: dict[tuple[Path, tuple[str, ...]], Path | None] = {}

    def include(self, source: str, options: dict[str, Any], more: list[str]) -> list[str]:
        """The arguments by which a C file takes what was read with the same arguments."""
        header = shared_header(Path(source))
        if header is None or self._compiler.compiler_type != "unix":
            return []
        with self._lock:
            key = (header, tuple(more))
            if key not in self._read:
                self._read[key] = self._read_header(header, options, more)
            copy = self._read[key]
        return [] if copy is None else ["-include", str(copy)]

    def _read_header(self, header: Path, options: dict[str, Any], more: list[str]) -> Path | None:
        # Each has a header of its own, which includes the one meant: what was read holds for these arguments alone.
        # It has no suffix: it makes no object stale.
        self._directory.mkdir(parents=True, exist_ok=True)
        copy = self._directory / str(len(self._read))
        name = f"<{header}>" if header == PYTHON_H else f'"{header.resolve()}"'
        copy.write_text(f"#include {name}\n", encoding="utf-8")
        macros = [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in options.get("macros") or ()]
        places = [f"-I{place}" for place in (*(options.get("include_dirs") or ()), *self._compiler.include_dirs)]
        command = [*self._compiler.compiler_so, *macros, *places, *more, "-x", "c-header", str(copy)]
        done = subprocess.run(
            [*command, "-o", f"{copy}.gch"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ).returncode
        return copy if done == 0 else None

    def remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


PYTHON_H = Path("Python.h")


def shared_header(source: Path) -> Path | None:
    """That of mypyc, which includes all others, or Python's; None: a C file that begins otherwise."""
    with source.open(encoding="utf-8") as lines:
        for line in itertools.islice(lines, 4):
            if line.startswith('#include "__native_internal_'):
                return source.parent / line.split('"')[1]
            if line.startswith("#include <Python.h>"):
                return PYTHON_H
    return None


def build_command() -> type[Any]:
    """``build_ext`` that compiles the C files of an extension side by side, and of these only what has changed."""
    from importlib.metadata import version

    from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

    class BuildChanged(build_ext):  # type: ignore[misc]
        def finalize_options(self) -> None:
            super().finalize_options()
            # One place, whoever builds; objects of another Python or mypyc are not taken for fresh.
            self.build_temp = str(WORK / f"objects-{version('mypy')}{SUFFIX}")
            # The extension that holds all code and the others, which only load it, side by side.
            self.parallel = os.cpu_count()

        def build_extensions(self) -> None:
            compile_in_turn = self.compiler.compile
            read_once = HeadersReadOnce(self.compiler)

            def compile(sources: list[str], **options: Any) -> list[str]:
                objects = self.compiler.object_filenames(sources, output_dir=options["output_dir"])
                # mypyc writes only files whose content is another one. Every C file includes headers of all modules.
                headers = [file for place in {Path(source).parent for source in sources} for file in place.rglob("*.h")]
                newest = max(
                    (file.stat().st_mtime for file in {*headers, *map(Path, options.get("depends") or ())}), default=0.0
                )
                old = [
                    source
                    for source, made in zip(sources, map(Path, objects), strict=True)
                    if not made.exists() or made.stat().st_mtime < max(newest, Path(source).stat().st_mtime)
                ]
                # The largest first: the last one to end is a small one then.
                old.sort(key=lambda source: -Path(source).stat().st_size)

                def compile_one(source: str) -> None:
                    more = [*(options.get("extra_postargs") or ())]
                    if is_seldom(source) and self.compiler.compiler_type == "unix":
                        more.append("-O1")
                    more += read_once.include(source, options, more)
                    compile_in_turn([source], **{**options, "extra_postargs": more})

                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    list(pool.map(compile_one, old))
                return list(objects)

            self.compiler.compile = compile
            try:
                super().build_extensions()
            finally:
                read_once.remove()

    return BuildChanged


def build(into: Path) -> None:
    """Write the extension modules under ``into``. Ends the process if mypy or the C compiler complain."""
    from setuptools import Distribution  # type: ignore[import-untyped]

    os.chdir(ROOT)
    # Not setup(): that would read pyproject.toml, which is about the package and not about this.
    distribution = Distribution({"name": "taipan-compiled", "ext_modules": extensions(WORK)})
    distribution.cmdclass["build_ext"] = build_command()
    command = distribution.get_command_obj("build_ext")
    command.build_lib = str(into)
    distribution.run_command("build_ext")


def compile_all() -> None:
    """Put fresh modules in the place of those that are there. Ends the process if mypy or the C compiler complain."""
    files = sources()
    before = Compiled.digests(ROOT)  # a file that changes meanwhile makes the result stale, not wrong
    fresh = TARGET.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    build(fresh)
    manifest = {
        "suffix": SUFFIX,
        "modules": [file.removesuffix(".py").replace("/", ".") for file in files],
        "sources": before,
        "sizes": Compiled.sizes(fresh),
    }
    (fresh / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(TARGET, ignore_errors=True)
    fresh.rename(TARGET)
    print(f"{len(files)} modules are compiled into {TARGET.relative_to(ROOT)}", file=sys.stderr)


def is_fresh() -> bool:
    """Whether just these modules are there, of these sources."""
    compiled = Compiled(TARGET)
    modules = [file.removesuffix(".py").replace("/", ".") for file in sources()]
    return compiled.unusable() is None and compiled.modules == modules


def end_with(node: int) -> None:
    """End this process soon after another one; what is compiled by then is not compiled again."""

    def watch() -> None:
        while True:
            try:
                os.kill(node, 0)
            except OSError:
                os._exit(1)
            time.sleep(0.5)

    Thread(target=watch, daemon=True).start()


def bring_up_to_date(hint: str, then: str = "") -> None:
    """Compile what is not fresh; ``hint`` is said before, ``then`` after it. Ends the process where that cannot be."""
    if is_fresh():
        return
    lacking = missing()
    if lacking is not None:
        sys.exit(lacking)
    TARGET.parent.mkdir(exist_ok=True)
    with (TARGET.parent / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Waiting for somebody else who compiles the hot path{hint}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)  # and finds the work done
        if is_fresh():
            return
        print(f"Compiling the hot path (once; a minute or two{hint})", file=sys.stderr)
        compile_all()
        if then:
            print(then, file=sys.stderr)


def main() -> int:
    if "--check" in sys.argv[1:]:
        lacking = missing()
        if lacking is not None:
            sys.exit(f"Nothing can be compiled: {lacking}. COMPILED=no goes without")
        return 0
    beside = "--beside" in sys.argv[1:]  # with the node's process identifier
    if not beside and "--try" not in sys.argv[1:]:
        bring_up_to_date("")
        return 0
    if beside:
        end_with(int(sys.argv[sys.argv.index("--beside") + 1]))
        os.nice(19)
    try:
        if beside:
            hint = "; the node runs interpreted meanwhile, the next start is the fast one"
            bring_up_to_date(hint, "The next start is the fast one")
        else:
            bring_up_to_date("; COMPILED=no goes without")
    except (Exception, SystemExit) as error:  # whatever mypyc and setuptools raise: interpreted, it runs all the same
        reason = str(error)
        if not reason or reason.isdigit():  # a status; what went wrong has been printed
            reason = "compiling failed"
        print(f"Taipan runs interpreted: {reason}", file=sys.stderr)
    return 0


def run() -> int:
    """``main``, where Ctrl-C is an end like another."""
    try:
        return main()
    except KeyboardInterrupt:
        print("Compiling was interrupted; what was there before is as it was", file=sys.stderr)
        return 130


if __name__ == "__main__":
    try:
        status = run()
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        status = error.code if isinstance(error.code, int) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # at once: the interpreter would take ten seconds to take down what mypy has built
