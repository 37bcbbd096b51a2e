"""The types of actions and resources that are offered: those of Taipan, and those of the operator's modules.

The engine reads them once, when it is made.
"""
