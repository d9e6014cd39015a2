"""Propagation in closed form; importing anything of it registers every rule."""

import covprop.propagate.rules
