"""What a rule may do with its result: one file for each action type, its parameters declared as data.

Nothing here selects messages or reads SQL; the engine calls in with a row and an event.
What talks to a network stands behind ``buffer`` and never makes a publisher wait.
"""
