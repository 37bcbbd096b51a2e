"""The dashboard's own side of HTTP: the files of its page, what a browser may do with them, and who may come in.

The page asks the API as everybody does; no endpoint lives here. ``management_server`` makes all of it.
"""
