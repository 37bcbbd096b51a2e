"""Simulation of a cluster: whole nodes on a virtual clock, and everything that can go wrong between them, by a seed.

``python -m tools.simulation`` runs it. ``loop`` is the event loop, ``disk`` what nodes store on, ``files`` the same
with real files, for nodes with copies, ``node`` a node, ``client`` an MQTT client, ``world`` all of them with what
happens to them, ``promises`` what must hold then.
"""
