"""From a model to its plan: `trace.py` runs it all.

`tracer.py` and `value.py` trace forward, `flatten.py` makes steps of the graph, `look.py` finds
their shapes and rules. What is refused on the way: `memory.py` writes that a step hides,
`constant.py` factors that change with the batch, `hooks.py` hooks; `faults.py` puts it in words.
"""
