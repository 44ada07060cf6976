"""Start of the ranks, here and on other hosts, and what holds them together."""
