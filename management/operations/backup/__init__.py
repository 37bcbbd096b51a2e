"""Export and import: one file that holds what a node keeps, written and read without holding the loop.

Formats of EMQX 4.x become ours in ``emqx_formats``; nothing is stored before every record of a file was found sound.
``operations.operations`` makes the one ``Backup``; ``api.data`` and ``ctl`` call it.
"""
