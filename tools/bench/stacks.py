"""Interpretation of py-spy's raw lines: the function of each stack, and what a waiting thread waited for.

A line has the frames from the outermost to the innermost, joined by ``;``, and the number of samples. Times are numbers
of samples of a thread. A Taipan frame is a Python frame of one of Taipan's files, or a function of a compiled module,
which mypyc calls ``CPyDef_<module>___<Class>___<function>``.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

EVENT_LOOP = "the event loop (uvloop, asyncio)"
"""The name under which work is listed if no Taipan function was called."""

WAITS = {
    "for the network": "epoll_wait epoll_pwait epoll_pwait2 poll select",
    "for the disk": "fdatasync fsync",
    "for the interpreter's lock": "take_gil pthread_cond_timedwait pthread_cond_wait pthread_cond_clockwait",
    "asleep": "clock_nanosleep nanosleep",
    "for work": "PyThread_acquire_lock_timed sem_wait sem_timedwait sem_clockwait futex_wait",
}
WORK = {
    "kernel: write": "write writev send sendto sendmsg sendmmsg",
    "kernel: read": "read readv recv recvfrom recvmsg",
    "kernel: accept": "accept accept4",
    "kernel: close": "close uv__close_nocancel shutdown",
    "kernel: epoll_ctl": "epoll_ctl uv__io_uring_enter",
    "kernel: files": "pwrite64 pread64 pwrite pread ftruncate64 lseek64",
    "waking the other thread": "sem_post",
    "passing on the interpreter's lock": "drop_gil pthread_cond_signal",
    "garbage collection": "gc_collect_main gc_collect_with_callback gc_collect_generations",
}
LIBRARIES = {
    "logging/": "logging",
    "websockets/": "websockets",
    "libssl": "OpenSSL",
    "libcrypto": "OpenSSL",
}
"""Names of libraries by the beginning of a frame's file, used if no inner frame is more specific."""

KINDS = {name: kind for kind, names in (WAITS | WORK).items() for name in names.split()}

_FRAME = re.compile(r"(.*) \((.*?)(?::\d+)?\)")
_OURS = re.compile(r"(?:broker|management|ruleengine)/(?:\w+/)*(\w+\.py)")
_COMPILED = re.compile(r"CPyDef_(\w+)")
_CLASS = re.compile("_*[A-Z]")
_GENERATOR = re.compile(r"(\w+?)(?:_([A-Z]\w*))?_gen")
_MEMBER = re.compile(r"(_?[A-Z]\w*)_(?:clear|traverse|setup)")
_NOT_OF_LIBC = re.compile(r"uv__|PyThread_|gc_|take_gil|drop_gil")
_ENTRY = "management/node.py"  # what starts the loop is below everything


class Function(NamedTuple):
    """A Taipan function. ``file`` is a module's short name, with ``.py`` if it ran interpreted."""

    name: str
    file: str


class Stack(NamedTuple):
    """A stack. ``functions`` are Taipan's, outermost first; ``kind`` is WAITS, WORK or LIBRARIES, or empty if a Taipan
    function itself was running."""

    thread: str
    functions: tuple[Function, ...]
    kind: str
    samples: int


@dataclass
class Share:
    """Samples of a function: as the innermost Taipan function, by kind, and including its calls."""

    own: Counter[str] = field(default_factory=Counter)
    inclusive: int = 0


@dataclass
class Thread:
    """The samples of one thread: work by function, and waiting by cause and function."""

    work: Counter[str] = field(default_factory=Counter)
    functions: dict[Function, Share] = field(default_factory=dict)
    waits: Counter[tuple[str, Function]] = field(default_factory=Counter)

    def add(self, stack: Stack) -> None:
        innermost = stack.functions[-1] if stack.functions else Function(EVENT_LOOP, "")
        if stack.kind in WAITS:
            self.waits[stack.kind, innermost] += stack.samples
            return
        self.work[stack.kind] += stack.samples
        self.functions.setdefault(innermost, Share()).own[stack.kind] += stack.samples
        for each in {*stack.functions, innermost}:
            self.functions.setdefault(each, Share()).inclusive += stack.samples


def threads(lines: Iterable[str]) -> dict[str, Thread]:
    """Return the samples of every thread in the lines of ``py-spy record --threads -f raw``, by name."""
    found: dict[str, Thread] = {}
    for line in lines:
        if line.strip():
            stack = read(line)
            found.setdefault(stack.thread, Thread()).add(stack)
    return found


def read(line: str) -> Stack:
    """Parse one line. Raises ValueError if it is invalid."""
    text, _, number = line.strip().rpartition(" ")
    first, *frames = text.split(";")
    functions: list[Function] = []
    innermost = 0
    for index, frame in enumerate(frames):
        function = function_of(frame)
        if function is not None:
            functions.append(function)
            innermost = index
    thread = re.sub(r"^thread \(\w+\):? ?", "", first) or "unnamed"
    return Stack(thread, tuple(functions), _kind(frames[innermost:]), int(number))


def function_of(frame: str) -> Function | None:
    """Return the Taipan function of a frame; None: it belongs to other code."""
    match = _FRAME.fullmatch(frame)
    if match is None:
        return None
    name, file = match.groups()
    compiled = _COMPILED.fullmatch(name)
    if compiled is not None:
        return _compiled(compiled[1])
    ours = _OURS.search(file)
    return Function(name, ours[1]) if ours is not None and not file.endswith(_ENTRY) else None


def _compiled(symbol: str) -> Function:
    """Parse a name of mypyc: ``retained___RetainedStore____insert`` is RetainedStore._insert of retained."""
    parts = symbol.removesuffix("_____mypyc_generator_helper__").split("___")
    at = next((index for index, part in enumerate(parts) if _CLASS.match(part)), len(parts) - 1)
    name = ".".join(parts[at:]).removeprefix("__mypyc__")
    generator, member = _GENERATOR.fullmatch(name), _MEMBER.fullmatch(name)
    if generator is not None:
        name = f"{generator[2]}.{generator[1]}" if generator[2] else generator[1]
    elif member is not None:  # functions that mypyc generates for a class, to allocate and free objects
        name = member[1]
    return Function(name, ".".join(parts[:at]))


def _kind(frames: list[str]) -> str:
    """Return the kind of the innermost frame with a known name; ``write`` is the kernel's only in libc."""
    for frame in reversed(frames):
        name, _, file = frame.partition(" (")
        if name in KINDS and (file.startswith("libc") or _NOT_OF_LIBC.match(name)):
            return KINDS[name]
        for library, kind in LIBRARIES.items():
            if file.startswith(library):
                return kind
    return ""
