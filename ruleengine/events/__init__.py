"""The input of rules: the kinds of events, and their columns, which are computed when a rule reads them.

``hops`` counts the rules and brokers that a message has passed. The package does not know rules."""
