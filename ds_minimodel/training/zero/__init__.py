"""All code that knows DeepSpeed's internals; no other imports it, but for its launcher, or touches
its private attributes.

docs/deepspeed.md is headed by the table of its quirks: DeepSpeed's issue, and what we do about
each.

config: its JSON and constants. start: its process group. engine: built, stepped, ended. state:
where masters and moments of each parameter lie. files: its checkpoint files.
"""
