"""Language packs in use: show, check, plug and join them, and the bits per byte that a body takes with each."""
