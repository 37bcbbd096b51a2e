"""Whole behaviours over real sockets, each as one conversation between a few peers and a node.

Parsing details belong to ``tests/packets``, single classes to ``tests/broker``. pytest calls in.
"""
