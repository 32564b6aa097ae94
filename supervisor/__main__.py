"""``python -m supervisor`` is the same as ``supervise``."""

from supervisor.cli.main import main

if __name__ == "__main__":
    main()
