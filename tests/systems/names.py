"""The resource types that are tested with real servers, by the module that does it."""

from typing import Final

SYSTEMS: Final = {
    "backend_pgsql": "test_postgresql.py",
    "backend_timescale": "test_postgresql.py",
    "timescaledb": "test_postgresql.py",
    "backend_matrix": "test_postgresql.py",
    "backend_mysql": "test_mysql.py",
}
