"""What every other room stands on: errors that users see, files, progress, counter-based randomness."""
