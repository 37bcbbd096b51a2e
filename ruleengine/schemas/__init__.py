"""Schemas: how the functions ``schema_decode``, ``schema_encode`` and ``schema_check`` read and write binary payloads.

One module for each parser type; ``schema_registry.py`` keeps the schemas of the node."""
