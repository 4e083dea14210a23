"""The runs of a folder in the browser, on this machine."""

from skillfit.studio.app import make_app, serve

__all__ = ["make_app", "serve"]
