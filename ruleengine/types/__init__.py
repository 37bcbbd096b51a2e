"""The available types of actions and resources: Taipan's own, and those of the operator's modules.

The engine reads them once, when it is created."""
