"""Start of ranks: how this process was started, ranks on this host and on others."""
