"""Simple references beside the systems: majority class, TF-IDF, lexical overlap."""
