"""The runs of a folder in the browser: watch, understand and steer them."""
