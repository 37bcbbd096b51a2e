"""Migration: what another broker keeps, as a configuration and a data directory of this one.

``taipan migrate`` calls it. Nothing here starts a node, talks to a network or changes what it reads.
"""
