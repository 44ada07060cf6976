"""Memory and traffic of a run, decided before anything is started."""
