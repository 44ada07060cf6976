"""The order of the steps, how one is run, and the checks made before."""
