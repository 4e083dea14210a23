from tests.training.world_fixture import make_world

__all__ = ["make_world"]
