"""The node of a session, and the move of a session to another node (docs/how-a-session-moves.md).

``claims`` brings a CONNECT to its session. ``known_places`` knows which node has each session, and ``session_keys``
changes that by compare-and-set, one task per client (``key_locks``). ``session_nodes`` lists what the files ask each
other.
``handover`` brings a session to this node, ``outgoing`` hands one over. ``connected`` keeps one client for each Client
Identifier. ``turns`` decides from which node a session gets the messages of each other node, and ``waiting_messages``
keeps those that arrive too early. ``evacuation`` moves all sessions of a node.
"""
