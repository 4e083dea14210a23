"""Every setting, read from YAML and overrides."""

from skillfit.config.keys import completed_identity, describe_keys, identity
from skillfit.config.reading import ConfigWarning, load_config
from skillfit.config.schema import Config

__all__ = [
    "Config",
    "ConfigWarning",
    "completed_identity",
    "describe_keys",
    "identity",
    "load_config",
]
