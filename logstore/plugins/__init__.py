"""logstore as the store of other brokers: one module for each, imported only on request.

A plugin imports public names only, as a user's own program would.
"""
