"""Every setting, read from YAML and overrides."""

from skillfit.config.reading import ConfigWarning, load_config
from skillfit.config.schema import Config, completed_identity, describe_keys, identity

__all__ = [
    "Config",
    "ConfigWarning",
    "completed_identity",
    "describe_keys",
    "identity",
    "load_config",
]
