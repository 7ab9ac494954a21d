"""logstore as the store of other people's brokers, one module each; nothing is imported before it is asked for."""
