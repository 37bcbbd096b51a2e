"""Optional extras of the node, one file each, that can be loaded and unloaded while it runs.

What a Server must do by the standard is not here, nor what only watches (``observe``) or judges (``access``).
``server.py`` builds and loads them; each is called from where it stands, told in its own file.
"""
