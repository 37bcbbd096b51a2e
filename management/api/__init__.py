"""The endpoints of /api and /api/v4: one file for each resource, each with a table of routes.

A handler calls one operation and names the type of the answer. It receives query and body already parsed
(``http.reading``), and at most converts a value for the operation. ``index.ALL`` joins the routes for
``taipan.management.management_server``."""
