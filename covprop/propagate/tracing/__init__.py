"""From a model to its plan: a trace of forward, and a look at every step of it."""
