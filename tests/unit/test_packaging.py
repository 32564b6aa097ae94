"""What is built is what is installed: a wheel in an environment of its own, and the editable checkout."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ("supervisor", "templates", "sql", "plugins", "examples")
SHIPPED = ("templates", "sql", "plugins", "examples")


@dataclass(frozen=True)
class Installation:
    """One way to have the supervisor."""

    python: Path
    supervise: Path
    home: Path
    package: Path
    """Where the package must come from."""

    def run(self, *argv: str | Path, cwd: Path) -> str:
        """Run a program of the installation far from the checkout and return what it printed."""
        environment = {"PATH": "/nonexistent", "HOME": str(self.home), "XDG_STATE_HOME": str(self.home)}
        done = subprocess.run(
            argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, as nothing may be left in the checkout; the network is not needed."""
    copy = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name)
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, copy / name)
    (copy / "supervisor" / "__pycache__").mkdir(exist_ok=True)
    (copy / "supervisor" / "__pycache__" / "left.cpython-311.pyc").write_bytes(b"x")
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def from_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("environment")
    # Linked, as a copied interpreter would not find its libraries; without pip, which takes seconds.
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    dependencies = folder / "dependencies"
    dependencies.mkdir()
    for path in map(Path, (entry for entry in sys.path if entry.endswith("site-packages"))):
        for entry in path.iterdir():
            # All but the way to the checkout: the supervisor itself must come from the wheel.
            if "supervisor" not in entry.name and entry.suffix != ".pth":
                (dependencies / entry.name).symlink_to(entry)
    (packages / "dependencies.pth").write_text(f"{dependencies}\n")
    python = folder / "bin" / "python"
    install = [
        *(sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"),
        *("install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel)),
    ]
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(install, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return Installation(
        python=python,
        supervise=folder / "bin" / "supervise",
        home=tmp_path_factory.mktemp("home"),
        package=packages / "supervisor",
    )


@pytest.fixture(scope="session")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The installation that runs these tests."""
    script = Path(sys.executable).with_name("supervise")
    assert script.exists(), f"{script} is missing: python -m pip install -e . --no-deps"
    return Installation(
        python=Path(sys.executable),
        supervise=script,
        home=tmp_path_factory.mktemp("home"),
        package=ROOT / "supervisor",
    )


@pytest.fixture(params=["from_wheel", "editable"])
def installed(request: pytest.FixtureRequest) -> Installation:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Installation)
    return found


def test_the_package_is_the_one_that_is_meant(installed: Installation, tmp_path: Path) -> None:
    code = "import supervisor, pathlib; print(pathlib.Path(supervisor.__file__).parent)"
    assert Path(installed.run(installed.python, "-c", code, cwd=tmp_path).strip()) == installed.package


def test_a_job_file_is_begun_checked_and_rendered_from_anywhere(
    installed: Installation, tmp_path: Path
) -> None:
    assert "job.yaml is written" in installed.run(installed.supervise, "init", cwd=tmp_path)
    planned = installed.run(installed.supervise, "submit", "--dry-run", "job.yaml", cwd=tmp_path)
    assert planned.startswith(f"# ---- {tmp_path}/.supervise/")
    assert "torchrun" in planned
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


def test_a_ledger_is_made_and_asked(installed: Installation, tmp_path: Path) -> None:
    ledger = ("--ledger", f"sqlite:///{tmp_path}/state/ledger.db")
    listed = installed.run(installed.supervise, *ledger, "ledger", "list", cwd=tmp_path)
    assert "failures_by_node" in listed
    asked = installed.run(installed.supervise, *ledger, "ledger", "query", "open_actions", "-n", cwd=tmp_path)
    assert asked == ""
    assert (tmp_path / "state" / "ledger.db").stat().st_size > 0


def test_plugins_signatures_and_every_shipped_folder_are_found(
    installed: Installation, tmp_path: Path
) -> None:
    code = (
        "from supervisor.hooks import load_plugins, load_signatures\n"
        "from supervisor.resources import resource_dir\n"
        "plugins = load_plugins()\n"
        "print(len(load_signatures(plugins)), len(plugins.hook.supervise_notify.get_hookimpls()))\n"
        f"for name in {SHIPPED!r}: print(resource_dir(name))\n"
    )
    counts, *folders = installed.run(installed.python, "-c", code, cwd=tmp_path).splitlines()
    signatures, notifiers = map(int, counts.split())
    assert signatures > 10
    assert notifiers == 2
    for name, folder in zip(SHIPPED, folders, strict=True):
        shipped = {path.relative_to(folder) for path in Path(folder).rglob("*") if path.suffix != ".pyc"}
        kept = {path.relative_to(ROOT / name) for path in (ROOT / name).rglob("*") if path.suffix != ".pyc"}
        assert {path for path in shipped if path.name != "__pycache__"} == {
            path for path in kept if path.name != "__pycache__"
        }


def test_the_package_runs_as_a_module(installed: Installation, tmp_path: Path) -> None:
    said = installed.run(installed.python, "-m", "supervisor", "--version", cwd=tmp_path)
    assert said == installed.run(installed.supervise, "--version", cwd=tmp_path)
    assert said.startswith("supervise, version ")


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"supervisor", "slurm_supervisor"}
    assert [name for name in names if "test" in name or "__pycache__" in name or name.endswith(".pyc")] == []
    assert "supervisor/py.typed" in names
    assert "supervisor/_share/sql/schema.sql" in names
    assert "supervisor/_share/plugins/signatures/common.yaml" in names
    assert len(names) == len(set(names))


def test_the_wheel_says_what_it_needs_and_what_it_starts(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (folder,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    metadata = message_from_string(archive.read(f"{folder}/METADATA").decode())
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra", [])) >= {"train", "pyslurm", "pg", "all"}
    needs = metadata.get_all("Requires-Dist", [])
    heavy = [line for line in needs if line.startswith(("torch", "pyslurm", "psycopg"))]
    assert heavy
    assert all("extra ==" in line for line in heavy)
    entries = archive.read(f"{folder}/entry_points.txt").decode()
    assert "[console_scripts]\nsupervise = supervisor.cli.main:main" in entries
