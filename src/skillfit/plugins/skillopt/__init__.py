"""Read the configs of SkillOpt."""
