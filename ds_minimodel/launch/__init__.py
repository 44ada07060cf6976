"""Start of ranks: how this process was started, and ranks on this host and on others."""
