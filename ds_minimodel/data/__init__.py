"""Token stores, samples of them, and what a recipe says of text."""
