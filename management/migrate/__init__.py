"""Migration: convert the data of another broker to a configuration and a data directory of Taipan.

``taipan migrate`` calls it. Nothing here starts a node, uses the network or changes the files that it reads."""
