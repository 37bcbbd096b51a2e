"""Tools for the development of Taipan: load generator, benchmarks, soak tests and fuzzing. Their own tests are in
tests/tools."""
