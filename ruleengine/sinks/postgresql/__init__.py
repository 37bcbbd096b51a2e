"""PostgreSQL, and the databases that are PostgreSQL with extensions: TimescaleDB and MatrixDB.

The resource types ``backend_pgsql``, ``backend_timescale``, ``timescaledb`` and ``backend_matrix``, and their
actions."""
