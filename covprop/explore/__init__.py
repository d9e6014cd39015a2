"""A page on a local server: choose an image and σ, see what the noise does to a network."""
