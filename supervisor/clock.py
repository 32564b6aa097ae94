"""The only place that asks what time it is, so that every other room can be tested without waiting."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits."""

    def now(self) -> datetime:
        """Return the current time, aware and in UTC."""
        ...

    def sleep(self, duration: timedelta) -> None:
        """Wait for ``duration``."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """Return the current time, aware and in UTC."""
        return datetime.now(UTC)

    def sleep(self, duration: timedelta) -> None:
        """Wait for ``duration``."""
        time.sleep(max(0.0, duration.total_seconds()))


class ManualClock:
    """A clock that moves only when told to; ``sleep`` moves it at once."""

    def __init__(self, start: datetime) -> None:
        self._now = start

    def now(self) -> datetime:
        """Return the time that was last set."""
        return self._now

    def sleep(self, duration: timedelta) -> None:
        """Move the clock forward by ``duration``."""
        self._now += duration
