from tests.rollout.conftest import setup

__all__ = ["setup"]
