"""Every setting, read from YAML and overrides."""

from skillfit.config.reading import ConfigWarning, load_config, map_paths
from skillfit.config.schema import Config, describe_keys

__all__ = ["Config", "ConfigWarning", "describe_keys", "load_config", "map_paths"]
