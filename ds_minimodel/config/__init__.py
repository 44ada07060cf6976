"""The recipe: one typed YAML file that drives every step."""
