"""All that knows DeepSpeed's insides."""
