"""All code that knows DeepSpeed's internals.

No other imports it, but for its launcher, or touches its private attributes. README.md beside it
lists what DeepSpeed does, and what is done about it.

config: its JSON and constants. start: its process group. engine: built, stepped, ended. state:
where masters and moments of each parameter lie. files: its checkpoint files.
"""
