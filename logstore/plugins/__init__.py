"""logstore as the store of other people's brokers, one module each; nothing is imported before it is asked for.

A plugin is written as a user's own would be: it imports public names only.
"""
