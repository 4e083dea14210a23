"""Run untrusted code and programs: isolation, limits, and processes that end with the run."""

from skillfit.sandbox.isolation import (
    Access,
    Isolation,
    SandboxMode,
    best_isolation,
    choose_isolation,
    run_sandboxed,
    run_untrusted,
)
from skillfit.sandbox.process import (
    ProcessResult,
    SandboxNotStarted,
    plain_environment,
    run_process,
)

__all__ = [
    "Access",
    "Isolation",
    "ProcessResult",
    "SandboxMode",
    "SandboxNotStarted",
    "best_isolation",
    "choose_isolation",
    "plain_environment",
    "run_process",
    "run_sandboxed",
    "run_untrusted",
]
