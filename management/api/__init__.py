"""The endpoints of /api and /api/v4: one file for each resource, each a table of routes.

A handler parses nothing and computes nothing: it calls one operation and names the shape of the answer.
``index.ALL`` joins them for ``taipan.management.management``.
"""
