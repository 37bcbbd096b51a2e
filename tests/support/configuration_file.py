"""Configuration files: the start of one, and one in the test's own process for the node that may change it."""

from pathlib import Path
from typing import Final

from taipan.management.configuration.config import Loaded, read
from taipan.management.operations.configuration_file import FileOfNode
from taipan.management.operations.operations import Operations

ONE_LISTENER: Final = """\
[node]
name = "n1@host"
data_dir = "{data}"

[[listeners]]
name = "only"
type = "tcp"
bind = "127.0.0.1:{port}"
max_qos = 1"""
"""The start of a file, with places for ``data`` and ``port``."""


class KeptFile:
    """The file, and the log levels that became effective, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.applied: list[str] = []
        path.write_text('[log]\nlevel = "info"\n', "utf-8")

    def use_in(self, operations: Operations) -> None:
        """From now on, this is the file of the node."""
        configuration = operations.configuration

        def apply(loaded: Loaded) -> None:
            self.applied.append(loaded.settings.log.level)
            configuration.use(loaded)

        def read_contents(contents: bytes) -> Loaded:
            return read(str(self.path), [f"node.name={operations.calls.name}"], {}, contents=contents)

        configuration.use(read_contents(self.path.read_bytes()))
        file = FileOfNode(str(self.path), read_contents, lambda loaded: None, apply, lambda: None)
        operations.configuration_file.use(file)
