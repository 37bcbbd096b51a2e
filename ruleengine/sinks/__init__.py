"""The sinks: one folder for each system that rows are sent to, with its resource types and its actions.

``types/builtin.py`` finds the folders: ``resource.py`` of a folder has ``RESOURCES``, ``action.py`` has ``ACTIONS``.
Nothing outside of a folder names its types.
"""
