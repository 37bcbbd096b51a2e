"""Web hooks: HTTP servers that receive rows.

The resource type ``web_hook`` and the action ``data_to_webserver``."""
