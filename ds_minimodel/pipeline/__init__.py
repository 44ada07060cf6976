"""The order of the steps, how one is run, and the checks and plans made before."""
