"""What a rule may do with its result: one file for each action type, its parameters declared as data.

Nothing here selects messages or reads SQL; a rule calls ``run`` with a row and an event.
What talks to a network puts its row into the buffer of a resource and never makes a publisher wait.
"""
