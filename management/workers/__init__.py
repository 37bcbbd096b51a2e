"""``node.workers``: one command runs several nodes that are one broker, a process for each core.

``supervisor`` is the process that the operator started. It starts a NATS server (``nats_program``) and the workers, and
restarts those that end (``restarts``). ``place`` is what makes a node a worker: its number, and the changes to the
settings that follow from it. A worker that is no longer needed empties itself (``retirement``)."""
