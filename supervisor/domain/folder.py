"""Where things lie in a run's folder on the shared file system. Paths only; nothing here touches a disk."""

import re
from dataclasses import dataclass
from pathlib import Path

from supervisor.domain.ids import AllocationNo

PARENT = ".supervise"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def run_folder(chdir: Path, name: str, uid: str) -> Path:
    """Return ``<chdir>/.supervise/<name>-<uid>``, the name reduced to what any file system takes."""
    slug = _UNSAFE.sub("_", name).strip("._-")[:48] or "run"
    return chdir / PARENT / f"{slug}-{uid}"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one run; everything is numbered by allocation, so no allocation overwrites another's."""

    root: Path

    def script(self, no: AllocationNo) -> Path:
        """Return the sbatch script."""
        return self.root / "scripts" / f"{no:04d}.sbatch"

    def node_script(self, no: AllocationNo) -> Path:
        """Return what srun starts on every node."""
        return self.root / "scripts" / f"{no:04d}.node.sh"

    def claims(self) -> Path:
        """Return the directory in which jobs claim allocations."""
        return self.root / "claims"

    def claim(self, no: AllocationNo) -> Path:
        """Return the directory that exactly one job can make; its file ``job`` names the job."""
        return self.claims() / f"{no:04d}"

    def journal(self, no: AllocationNo) -> Path:
        """Return the append-only JSON lines of what the script did."""
        return self.root / "journal" / f"{no:04d}.jsonl"

    def exit_marker(self, no: AllocationNo) -> Path:
        """Return the JSON file that the script leaves behind, whatever happened to it."""
        return self.root / "exit" / f"{no:04d}.json"

    def log(self, no: AllocationNo) -> Path:
        """Return the output of the script and of the training."""
        return self.root / "logs" / f"{no:04d}.out"

    def progress(self, no: AllocationNo) -> Path:
        """Return the JSON lines, one a step, that rank 0 may write (``SUPERVISE_PROGRESS``)."""
        return self.root / "progress" / f"{no:04d}.jsonl"

    def stop_file(self, no: AllocationNo) -> Path:
        """Return the file whose existence asks the training to save and stop."""
        return self.root / "stop" / f"{no:04d}"

    def environment(self) -> Path:
        """Return the submitter's environment, NUL-separated, for every allocation of the run."""
        return self.root / "environment"
