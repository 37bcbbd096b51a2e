"""Export and import: one file with the stored data of a node, written and read without blocking the loop.

``emqx_formats`` converts the formats of EMQX 4.x. Nothing is stored before every record of a file has been checked.
``operations.operations`` creates the only ``Backup``; ``api.data`` and ``ctl`` call it."""
