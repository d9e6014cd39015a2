"""Training: recipes, and a loop that can be killed at any moment and goes on exactly."""

from covprop.train.loop import train
from covprop.train.recipe import Recipe, find, load, resolve, shipped
from covprop.train.stop import Interrupted

__all__ = ["Interrupted", "Recipe", "find", "load", "resolve", "shipped", "train"]
