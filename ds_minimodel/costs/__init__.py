"""Memory and FLOPs of a recipe's steps before anything is started, or their measured time; nothing
that trains imports it.

plans: the steps of a recipe, planned. tracing: a step's passes without memory. memory: bytes held
and sent. measure: seconds of a few real steps. sizes: what memory decides of an adaptation.
"""
