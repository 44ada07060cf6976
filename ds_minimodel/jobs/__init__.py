"""Jobs: where artifacts lie, what each was made from, and what has become of it."""
