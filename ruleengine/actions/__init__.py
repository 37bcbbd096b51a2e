"""The actions of a rule: one file for each action type, with its parameters declared as data.

Nothing here selects messages or reads SQL; a rule calls ``run`` with a row and an event. An action that uses a network
puts its row into the buffer of a resource and never makes a publisher wait."""
