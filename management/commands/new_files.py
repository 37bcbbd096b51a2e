"""Files that are written together: either all of them or none, and never over existing files."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path


class NotWritten(Exception):
    """Nothing was written; the message is one line."""


def write(directory: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    """``files``: path below ``directory`` -> contents and mode. The directory is created if it is missing.

    Raises NotWritten if one of the files, or of their directories, already exists, or on an error of the system."""
    tops = list(dict.fromkeys(name.partition("/")[0] for name in files))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for top in tops:
            if os.path.lexists(directory / top):
                raise NotWritten(f"{directory / top} already exists, and nothing was written")
        with tempfile.TemporaryDirectory(prefix=".new-", dir=directory) as temporary:
            for name, (contents, mode) in files.items():
                file = Path(temporary, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
                    opened.write(contents)
                    os.fsync(opened.fileno())
            moved: list[Path] = []
            try:
                for top in tops:
                    os.rename(Path(temporary, top), directory / top)
                    moved.append(directory / top)
            except OSError:
                for path in moved:
                    with contextlib.suppress(OSError):
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
                raise
    except OSError as error:
        raise NotWritten(f"{error.filename or directory}: {error.strerror}") from None
