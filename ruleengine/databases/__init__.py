"""Databases: what all sinks share that write rows with SQL statements.

Templates of statements, the split of a batch with a refused row, the connections, and the parameters of their types."""
