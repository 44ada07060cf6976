"""Text: files, rows of tables, dialogues, read once into a corpus."""
