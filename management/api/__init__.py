"""The endpoints of /api and /api/v4: one file for each resource, each a table of routes.

A handler calls one operation and names the shape of the answer. Query and body come to it parsed (``http.reading``);
at most it brings a value into the form that the operation takes.
``index.ALL`` joins them for ``taipan.management.management_server``.
"""
