"""What rules select from: the kinds of events, and their columns, which are computed when a rule reads them.

``hops`` counts the rules and brokers that a message has come through. It knows no rule.
"""
