"""Memory, traffic and time of a recipe's steps, planned before anything is started; nothing that trains imports it.

plans: the steps of a recipe, planned. tracing: a step's passes without memory. memory: bytes held and sent. forecast:
seconds, from the operators and what `calibration` has measured of a device (devices).
"""
