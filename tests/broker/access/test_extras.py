"""A node without a database or directory imports none of their libraries."""

import subprocess
import sys
from typing import Final

LIBRARIES: Final = ("asyncpg", "aiomysql", "pymysql", "redis", "pyasn1", "pyasn1_modules")
CODE: Final = """
import sys
from taipan.broker.access.registry import ACCESS_SOURCES
from taipan.management.configuration.config import load
assert len(ACCESS_SOURCES) >= 8
settings = load(None, environ={})
import taipan.management.start
print([each for each in %r if each in sys.modules])
"""


def test_a_node_without_them_imports_none_of_their_libraries() -> None:
    done = subprocess.run([sys.executable, "-c", CODE % (LIBRARIES,)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
