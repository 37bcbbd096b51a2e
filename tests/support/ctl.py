"""taipan-ctl against a node under test: its words over the real socket, or the real command as a process."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from taipan.management.ctl.main import HEAD

from .api import ManagedNode
from .patience import patience

ROOT = Path(__file__).parents[2]


class Said(NamedTuple):
    """What the command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


async def exchange(path: Path, octets: bytes, eof: bool = False) -> bytes:
    """Sends these bytes to the socket and gives everything that it answers until it closes."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        async with asyncio.timeout(patience(40)):
            try:
                writer.write(octets)
                await writer.drain()
                if eof:
                    writer.write_eof()
            except ConnectionError:
                pass  # it had heard enough
            answer = bytearray()
            try:
                while octets := await reader.read(65_536):
                    answer += octets
            except ConnectionError:
                pass  # it left some of it unread; its answer is here before that
            return bytes(answer)
    finally:
        writer.close()
        await asyncio.sleep(0)


def parse(answer: bytes) -> Said:
    """The frames of an answer, which must be whole and end with the exit status."""
    texts = {b"o": b"", b"e": b"", b"x": b""}
    while answer:
        assert not texts[b"x"], "something follows the exit status"
        end = HEAD + int.from_bytes(answer[1:HEAD], "big")
        assert len(answer) >= end, "half a frame"
        texts[answer[:1]] += answer[HEAD:end]
        answer = answer[end:]
    return Said(int(texts[b"x"]), texts[b"o"].decode(), texts[b"e"].decode())


async def ctl(node: ManagedNode, *words: str, as_json: bool = False) -> Said:
    """One command over the node's own socket."""
    request = json.dumps({"args": words, "json": as_json}).encode() + b"\n"
    return parse(await exchange(node.management.control.path, request))


async def done(node: ManagedNode, *words: str) -> list[str]:
    """The lines of a command that must succeed."""
    said = await ctl(node, *words)
    assert (said.status, said.err) == (0, ""), said
    return said.lines


async def refused(node: ManagedNode, *words: str) -> str:
    """What a command that must be refused says: one line in the form that all errors have, here without its start."""
    said = await ctl(node, *words)
    assert (said.status, said.err, len(said.lines)) == (1, "", 1), said
    assert said.out.startswith("error: ") and said.out.count(": ") > 1, said
    return said.out.removeprefix("error: ").rstrip("\n")


async def ctl_json(node: ManagedNode, *words: str) -> Any:
    """What a command that must succeed prints with ``--json``."""
    said = await ctl(node, *words, as_json=True)
    assert (said.status, said.err) == (0, ""), said
    return json.loads(said.out)


async def run(*arguments: str, cwd: Path = ROOT, **environment: str) -> Said:
    """The real ``taipan-ctl`` in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys; from taipan.management.ctl.main import main; sys.exit(main())", *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        cwd=cwd, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **environment},
    )  # fmt: skip
    async with asyncio.timeout(patience(40)):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Said(process.returncode, out.decode(), err.decode())
