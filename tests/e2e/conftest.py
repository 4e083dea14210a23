from tests.training.making import make_world

__all__ = ["make_world"]
