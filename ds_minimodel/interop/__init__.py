"""Import and export of other libraries' checkpoints."""
