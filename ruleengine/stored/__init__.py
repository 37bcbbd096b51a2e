"""The stored data of rules and resources: their rows, the counters of rules, and rows of other nodes.

``param_masking`` masks the secrets of a row in answers."""
