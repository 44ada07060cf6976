"""The ranks that train together: how the process of one was started, and what holds them together."""
