"""Commands: their words, usage, arguments and results."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NamedTuple

from taipan.broker.observability.log_text import NOTHING, one_line

from ..configuration.validation import nearest, shown
from ..operations.operations import Operations
from ..operations.refusal import EXISTS, UNKNOWN, WRONG, Refusal

DASHES: Final = "-" * 110
_USAGE_WIDTH: Final = 70
_DELETE: Final = ("del", "delete")
_MAX_LENGTH: Final = 65_535
_DOCUMENT: Final = "JSON"
"""The name of arguments that may be longer than ``_MAX_LENGTH`` bytes."""

OK: Final = "ok"
NOT_FOUND: Final = "not found"
EXISTS_ALREADY: Final = "exists already"

# The subject of a command, by its first word or its first two: a noun, and which of its values are the name.
_SUBJECTS: Final = {
    "acl": ("access rule", ("ClientId", "Username")),
    "acl cache-clean": ("client", ("ClientId",)),
    "acl cache-clean node": ("node", ("Node",)),
    "admins": ("admin", ("Username",)),
    "alarms": ("alarm", ("Name",)),
    "alarms test": ("alarm target", ("Target",)),
    "annotate": ("annotation", ("Text",)),
    "annotations": ("annotation", ("Id",)),
    "backup": ("file", ("File",)),
    "banned": ("ban", ("As", "Who")),
    "clientid": ("client identifier", ("ClientId",)),
    "clients": ("client", ("ClientId",)),
    "cluster": ("node", ("Node",)),
    "delayed": ("delayed message", ("Id",)),
    "data": ("file", ("File",)),
    "explain client": ("client", ("ClientId",)),
    "explain delivery": ("topic", ("Topic",)),
    "explain topic": ("topic", ("Topic",)),
    "help": ("command", ("Command",)),
    "listeners": ("listener", ("Identifier", "Protocol", "Port")),
    "log handlers": ("log handler", ("HandlerId",)),
    "log set-level": ("logger", ("Logger",)),
    "mgmt": ("application", ("AppId",)),
    "modules": ("module", ("Module",)),
    "mqtt-acl": ("access rule", ("Login",)),
    "mqtt-user": ("user", ("Login",)),
    "publish": ("topic", ("Topic",)),
    "resource-types": ("resource type", ("ResourceType",)),
    "schemas": ("schema", ("Name",)),
    "resources": ("resource", ("ResourceId", "Id")),
    "resources test": ("resource type", ("ResourceType",)),
    "retainer": ("topic", ("Topic",)),
    "routes": ("route", ("Topic",)),
    "rule-actions": ("action", ("ActionName",)),
    "rules": ("rule", ("RuleId", "Id")),
    "silences": ("silence", ("Id", "Alarms")),
    "subscriptions": ("client", ("ClientId",)),
    "thresholds": ("threshold", ("Figure",)),
    "topic-metrics": ("topic", ("Topic",)),
    "trace": ("trace", ("Name", "Type", "Value")),
    "traces": ("trace", ("Name",)),
    "user": ("user", ("Username",)),
    "users": ("user", ("Login",)),
    "watch": ("topic", ("Filter",)),
}

Lines = str | Callable[[Any], str | Iterable[str | None]]


class Told(NamedTuple):
    """A piece of a continuous answer: ``data`` is one line with ``--json``. ``aside``: written to the error output."""

    data: object
    text: str | list[str]
    aside: bool = False


Stream = AsyncGenerator[list[Told], None]
"""A continuous answer. An empty list from time to time shows whether the caller has disconnected."""


class CommandResult:
    """The result of a command.

    ``data``: the ``data`` of the HTTP API's answer (also a ``Listing``; ``None``: only a code). ``text``: the lines to
    print, or a function that creates them from ``data``, or from each row of a listing. ``None`` among the lines lets
    other tasks run. ``file``: pieces of a file that ``taipan-ctl`` stores; ``data`` follows them. ``stream``: a
    continuous answer, instead of ``data``."""

    __slots__ = ("data", "file", "stream", "text")

    def __init__(
        self,
        data: object,
        text: Lines,
        file: AsyncGenerator[bytes, None] | None = None,
        stream: Stream | None = None,
    ) -> None:
        self.data = data
        self.text = text
        self.file = file
        self.stream = stream


class Failure(Refusal):
    """A refusal that is shown to people with the words of ``text`` instead of those of ``message``."""

    def __init__(self, code: int, message: str, text: str) -> None:
        super().__init__(code, message)
        self.text = text


class AnswerEnded(Refusal):
    """A continuous answer that ended before the caller stopped it; reported on the error output."""


def _never() -> str:
    return ""


@contextmanager
def telling(words: Callable[[Refusal], str | None]) -> Iterator[None]:
    """Context manager that gives a refusal another text for people; ``None``: its own text."""
    try:
        yield
    except Refusal as refusal:
        text = words(refusal)
        if text is None:
            raise
        raise Failure(refusal.code, refusal.message, text) from None


def finding(code: int = UNKNOWN) -> AbstractContextManager[None]:
    """Return a context in which a refusal with this code, because the object does not exist, becomes "not found"."""
    return telling(lambda refusal: NOT_FOUND if refusal.code == code else None)


class UsageError(Exception):
    """No command has these words. ``problem``: the reason, empty if no word was given; ``usages``: the closest
    usages."""

    def __init__(self, problem: str, usages: list[str]) -> None:
        super().__init__("\n".join([problem, *usages] if problem else usages))
        self.problem = problem
        self.usages = usages

    @property
    def lines(self) -> list[str]:
        """Return the lines that people read."""
        return [f"error: {self.problem}", *self.usages] if self.problem else self.usages


class CommandCall:
    """A command that is being executed. ``values``: the arguments, by their names in the usage: ``call["ClientId"]``.
    ``app``: the application that uses HTTP, empty for the socket. ``ended``: why the caller no longer has access, empty
    while it has."""

    __slots__ = ("app", "ended", "operations", "values")

    def __init__(
        self, operations: Operations, values: dict[str, str], app: str = "", ended: Callable[[], str] = _never
    ) -> None:
        """Raises Refusal 108 for arguments that are empty or longer than any name can be."""
        for name, value in values.items():
            if not value:
                raise Refusal(WRONG, f"{name}: expected 1 character or more")
            if name != _DOCUMENT and len(value.encode()) > _MAX_LENGTH:
                raise Refusal(WRONG, f"{name}: longer than {_MAX_LENGTH} bytes")
        self.operations = operations
        self.values = values
        self.app = app
        self.ended = ended

    def __getitem__(self, name: str) -> str:
        return self.values[name]

    def get(self, name: str) -> str | None:
        """Return the value of an optional argument."""
        return self.values.get(name)

    def only_on_the_machine(self, otherwise: str) -> None:
        """Reject a command that is only allowed on the node's machine. Raises Refusal 108, whose message has the
        alternative, ``otherwise``."""
        if self.app:
            raise Refusal(WRONG, f"this command works on the node's own machine only; from elsewhere: {otherwise}")

    def integer(self, name: str, least: int, most: int) -> int:
        """Return an argument that must be a whole number. Raises Refusal 108."""
        text = self.values[name]
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and least <= int(text) <= most):
            raise Refusal(WRONG, f"{name}: expected a number from {least} to {most}")
        return int(text)

    def flag(self, name: str) -> bool:
        """Return an argument that must be ``true`` or ``false``. Raises Refusal 108."""
        return self.choice(name, "true", "false") == "true"

    def choice(self, name: str, *allowed: str) -> str:
        """Return an argument that must be one of these. Raises Refusal 108."""
        text = self.values[name]
        if text not in allowed:
            raise Refusal(WRONG, f"{name}: expected one of {', '.join(allowed)}")
        return text


Run = Callable[[CommandCall], CommandResult | Awaitable[CommandResult]]


class Command:
    """``usage`` contains the words and arguments: ``clients show <ClientId>``, ``data import <File> [--env <JSON>]``.

    ``<Name>`` is required and ``[<Name>]`` optional. ``[--name <Name>]`` and ``[--name]`` may be anywhere after the
    words; if ``--name`` has no value, the values contain its own name if it was given."""

    __slots__ = ("flags", "optional", "options", "required", "run", "summary", "usage", "words")

    def __init__(self, usage: str, summary: str, run: Run) -> None:
        self.usage = usage
        self.summary = summary
        self.run = run
        words: list[str] = []
        self.required: list[str] = []
        self.optional: list[str] = []
        # --name -> the name of its argument
        self.options: dict[str, str] = {}
        self.flags: list[str] = []
        parts = usage.split()
        while parts:
            part = parts.pop(0)
            if part.startswith("[-") and part.endswith("]"):
                self.flags.append(part[1:-1])
            elif part.startswith("[-"):
                self.options[part[1:]] = parts.pop(0)[1:-2]
            elif part.startswith("["):
                self.optional.append(part[2:-2])
            elif part.startswith("<"):
                self.required.append(part[1:-1])
            else:
                words.append(part)
        self.words = tuple(words)

    def read(self, given: Sequence[str]) -> dict[str, str] | None:
        """Return the arguments by name; ``None`` if there are too many, too few or unknown ones."""
        values: dict[str, str] = {}
        plain: list[str] = []
        rest = list(given)
        while rest:
            word = rest.pop(0)
            name, equals, value = word.partition("=")
            if name in self.options and (equals or rest):
                if self.options[name] in values:
                    return None
                values[self.options[name]] = value if equals else rest.pop(0)
            elif word in self.options:
                return None
            elif word in self.flags:
                values[word] = word
            else:
                plain.append(word)
        names = self.required + self.optional
        if not len(self.required) <= len(plain) <= len(names):
            return None
        values.update(zip(names, plain, strict=False))
        return values

    def misfit(self, given: Sequence[str]) -> str:
        """Why ``read`` returns None for these words."""
        plain: list[str] = []
        seen: set[str] = set()
        rest = list(given)
        while rest:
            word = rest.pop(0)
            name, equals, _ = word.partition("=")
            if name in self.options:
                if name in seen:
                    return f"{name} is given twice"
                if not equals and not rest:
                    return f"{name} <{self.options[name]}>: the value is missing"
                seen.add(name)
                if not equals:
                    rest.pop(0)
            elif word not in self.flags:
                plain.append(word)
        lacking = self.required[len(plain) :]
        if lacking:
            return f"{' '.join(f'<{name}>' for name in lacking)} {'is' if len(lacking) == 1 else 'are'} missing"
        return f"unexpected argument {shown(plain[len(self.required) + len(self.optional)])}"

    def subject(self, values: Mapping[str, str]) -> str:
        """Return the subject of the command for errors: ``client porch``, or the command itself."""
        words = self.words
        while words and " ".join(words) not in _SUBJECTS:
            words = words[:-1]
        noun, names = _SUBJECTS.get(" ".join(words), ("", ()))
        name = " ".join(values[each] for each in names if each in values)
        if noun == "access rule":  # the usage names the client: clientid, _all
            name = " ".join(filter(None, (*self.words[2:3], name)))
        return f"{noun} {one_line(name)}" if name else f"command {' '.join(self.words)}"

    def __repr__(self) -> str:
        return f"Command({self.usage!r})"


class Commands:
    """The commands of one noun::

    commands = Commands()

    @commands.add("clients show <ClientId>", "Show a client")
    def show(call: CommandCall) -> CommandResult: ...
    """

    def __init__(self) -> None:
        self.all: list[Command] = []

    def add(self, usage: str, summary: str) -> Callable[[Run], Run]:
        def register(run: Run) -> Run:
            self.all.append(Command(usage, summary, run))
            return run

        return register

    def add_here(self, usage: str, summary: str) -> None:
        """Add a command that ``taipan-ctl`` executes itself, without a node (``main.HERE``)."""

        def refuse(call: CommandCall) -> CommandResult:
            raise Refusal(WRONG, "taipan-ctl does this itself: the calling taipan-ctl is older than the node")

        self.all.append(Command(usage, summary, refuse))


def find(commands: Iterable[Command], given: Sequence[str]) -> tuple[Command, dict[str, str]]:
    """Return the command for these words, which is the one with the most matching words, and its arguments. Raises
    UsageError."""
    known = list(commands)
    named = sorted((each for each in known if _named(each, given)), key=lambda each: -len(each.words))
    for command in named:
        values = command.read(given[len(command.words) :])
        if values is not None:
            return command, values
    if not given:
        raise UsageError("", overview(known))
    group = usages_of(given[0], known)
    seconds = {each.words[1] for each in group if len(each.words) > 1}
    if len(given) == 1 and not named:
        raise UsageError(f"command {given[0]}: a word is missing after it", [usage_line(each) for each in group])
    if len(given) > 1 and seconds and not any(len(each.words) > 1 or each.required for each in named):
        problem = f"command {one_line(' '.join(given[:2]))}: unknown{nearest(given[1], seconds)}"
        raise UsageError(problem, [usage_line(each) for each in group])
    longest = [each for each in named if len(each.words) == len(named[0].words)]
    problem = f"command {' '.join(longest[0].words)}: {longest[0].misfit(given[len(longest[0].words) :])}"
    raise UsageError(problem, [usage_line(each) for each in longest])


def usages_of(noun: str, commands: Iterable[Command]) -> list[Command]:
    """Return all commands that begin with this word. Raises UsageError if there are none."""
    known = list(commands)
    group = [each for each in known if each.words[0] == noun]
    if not group:
        near = nearest(noun, {each.words[0] for each in known})
        raise UsageError(f"command {one_line(noun)}: unknown{near}", ["taipan-ctl help shows all commands"])
    return group


def complaint(command: Command, values: Mapping[str, str], refusal: Refusal) -> str:
    """Return an error in the form of all errors: ``error: client porch: not found``, ``error: argument QoS: expected
    ...``."""
    name, colon, rest = refusal.message.partition(": ")
    arguments = {each.lower(): f"argument {each}" for each in (*command.required, *command.optional)}
    arguments |= {each.lower(): f"option {option}" for option, each in command.options.items()}
    if isinstance(refusal, Failure):
        problem = refusal.text
    elif colon and name.lower() in arguments:
        return f"error: {arguments[name.lower()]}: {rest}"
    elif refusal.code == EXISTS:
        problem = EXISTS_ALREADY
    else:
        problem = refusal.message
    return f"error: {command.subject(values)}: {problem}"


def _named(command: Command, given: Sequence[str]) -> bool:
    """Return whether the words name the command. ``del`` and ``delete`` are the same word, because EMQX uses both."""
    words = tuple(given[: len(command.words)])
    if len(words) > 1 and words[1] in _DELETE and command.words[1:2] and command.words[1] in _DELETE:
        words = (words[0], command.words[1], *words[2:])
    return words == command.words


def usage_line(command: Command) -> str:
    """Return ``clients show <ClientId> # Show a client``, with the remark at column 70."""
    return f"{command.usage:<{_USAGE_WIDTH}}# {command.summary}"


def overview(commands: Iterable[Command]) -> list[str]:
    """Return all usages, with a line of dashes before each group."""
    lines = [
        "Usage: taipan-ctl [--data-dir DIR | --config FILE] [--timeout SECONDS] [--json] COMMAND",
        "       taipan-ctl --url URL [--app-file FILE] [--cafile FILE] [--timeout SECONDS] [--json] COMMAND",
        "       taipan-ctl --profile NAME [--timeout SECONDS] [--json] COMMAND",
    ]
    group = ""
    for command in commands:
        if command.words[0] != group:
            group = command.words[0]
            lines.append(DASHES)
        lines.append(usage_line(command))
    return lines


def key_line(key: str, value: object, width: int) -> str:
    """Return ``sysdescr : Taipan``, with the key truncated or padded to ``width``."""
    return f"{key[:width]:<{width}}: {value}"


def not_found(what: str, code: int = UNKNOWN) -> Failure:
    """Return the refusal for a missing object. Programs read its name in ``what``; people read "not found"."""
    return Failure(code, f"no {what}", NOT_FOUND)


def word(flag: bool) -> str:
    """Return ``true`` or ``false``."""
    return "true" if flag else "false"


def told(value: object) -> object:
    """Return a value as it appears in a line; ``-`` if it is absent."""
    if isinstance(value, bool):
        return word(value)
    return NOTHING if value is None else value
