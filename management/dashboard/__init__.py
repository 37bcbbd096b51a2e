"""The server side of the dashboard: the files of its page, the browser's permissions, and access control.

The page uses the API like any other client; this package has no endpoints. ``management_server`` creates all
objects."""
