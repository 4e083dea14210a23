"""Every setting, read from YAML and overrides."""

from skillfit.config.reading import ConfigWarning, load_config
from skillfit.config.schema import Config, EnvSection, SplitSection, describe_keys

__all__ = [
    "Config",
    "ConfigWarning",
    "EnvSection",
    "SplitSection",
    "describe_keys",
    "load_config",
]
