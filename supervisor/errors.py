"""Every error that a user can meet: one root, few leaves, one exit code each.

A message says where, what, and what to do. The command line turns an error into its text and its
``exit_code`` and never prints a traceback for these.
"""


class SupervisorError(Exception):
    """The thing asked for failed."""

    exit_code = 1


class UsageError(SupervisorError):
    """The command line or an argument makes no sense."""

    exit_code = 2


class SpecError(SupervisorError):
    """The job file cannot be accepted; ``problems`` holds every one as ``file:line:col: text``."""

    exit_code = 2

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class SettingsError(SupervisorError):
    """A settings file or a ``SUPERVISE_*`` variable cannot be accepted."""

    exit_code = 2


class SlurmUnavailable(SupervisorError):
    """Slurm did not answer, so nothing about its jobs and nodes is known (temporary)."""

    exit_code = 3


class SlurmRejected(SupervisorError):
    """Slurm answered and refused (permanent until somebody changes something)."""

    exit_code = 1


class LedgerError(SupervisorError):
    """The ledger cannot be opened, read or written."""

    exit_code = 3


class PolicyRefusal(SupervisorError):
    """The request is against a rule of the site or of the supervisor."""

    exit_code = 4


class NothingMatched(SupervisorError):
    """What was named does not exist."""

    exit_code = 5


class TryLater(SupervisorError):
    """Somebody else is at work right now; nothing was done (EX_TEMPFAIL for cron)."""

    exit_code = 75


class LabError(SupervisorError):
    """The throw-away Slurm cluster could not be brought up, changed or taken down."""

    exit_code = 1
