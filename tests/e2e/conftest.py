from tests.training.project_fixture import make_project

__all__ = ["make_project"]
