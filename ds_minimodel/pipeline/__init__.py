"""The order of the steps, the run of one, and what is checked and foretold before."""
