"""Real text and labelled tasks in several languages, out of Debian packages."""
