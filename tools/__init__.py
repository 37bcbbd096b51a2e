"""Tools of those who work on Taipan: the load generator, benches, soak and fuzz. Their own tests are in tests/tools."""
