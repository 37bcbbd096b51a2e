"""Recorded answers of EMQX 4.1.5 and 4.4.19, and how they are replayed against a node.

The recordings are kept as they were made; ``deviations.toml`` says where Taipan answers otherwise, and why.
``tests.api.test_golden`` calls in.
"""
