from skillfit.config.source import Settings
def is_reference(data: object) -> bool: return False
def translate(settings: Settings, above: Settings, warn: object) -> Settings: return settings
