"""Memory, traffic and time of a run, planned before anything is started."""
