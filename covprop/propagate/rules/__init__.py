"""The rules, one family a file; importing this package registers them all."""

from covprop.propagate.rules import activation, conv, linear, merge, norm, pool, shape, shuffle
