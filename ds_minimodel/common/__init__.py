"""Shared basics: errors that users see, files, progress, special ids, counter-based randomness."""
