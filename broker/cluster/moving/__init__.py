"""The node of a session, and the move of a session to another node (docs/how-a-session-moves.md).

``claims`` brings a CONNECT to its session. ``known_places`` knows which node has each session, and ``session_keys``
changes that by compare-and-set, one task per client (``key_locks``). ``session_nodes`` lists the questions between
these files.

``handover`` brings a session to this node: ``incoming`` has its rows, ``staging`` makes new messages wait, ``fetching``
brings the queue, and ``givers`` finds the parts of a session that continued without other nodes. ``outgoing`` hands a
session over in pieces (``queue_pieces``, ``given_pieces``); ``kept_stays`` is for messages that arrive after the
session has left. ``session_transfer`` defines the form of everything that is transferred.

``turns`` decides from which node a session gets the messages of each other node, by the marks that ``mark_questions``
asks for. ``greeting`` makes a node with new data wait until the others have its marks. ``held_messages`` decides which
messages arrive too early, and ``waiting_messages`` stores them. ``connected`` keeps one client for each Client
Identifier, and ``evacuation`` moves all sessions of a node.
"""
