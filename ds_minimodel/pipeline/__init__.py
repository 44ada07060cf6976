"""The order of the steps, the run of one, checks ahead of it, and plans of memory and traffic."""
