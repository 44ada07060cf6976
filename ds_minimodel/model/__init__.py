"""The transformer, its heads, and what trains in each step."""
