"""The sinks: one directory for each target system, with its resource types and its actions.

``types/builtin.py`` finds the directories: ``resource.py`` in a directory defines ``RESOURCES``, ``action.py`` defines
``ACTIONS``. Only the directory itself names its types."""
