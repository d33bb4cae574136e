"""Check what a user installs: the wheel, built through the sdist, in an environment of its own.

The wheel must hold every file of the five parts, and no other; every module must import with the
base dependencies alone and without an engine; the command must start.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("sdk", "executors", "policies", "contrib", "benchmarks")
EXTRA_MODULES = (
    "swingshift.benchmarks.measured",
    "swingshift.executors.app.calibration",
    "swingshift.executors.local",
    "swingshift.executors.rl.losses",
)
"""Modules that need the extra ``local``; tests import them where it is installed."""

PROBE = """
import importlib, pkgutil, sys
import swingshift

of_extras = tuple(sys.argv[1].split(","))
names = [f"swingshift.{part}" for part in sys.argv[2:]]
modules = [
    module.name
    for name in names
    for module in pkgutil.walk_packages(importlib.import_module(name).__path__, name + ".")
    if not module.name.endswith("__main__") and not module.name.startswith(of_extras)
]
for module in modules:
    importlib.import_module(module)
engines = {"torch", "ray", "vllm", "megatron"} & set(sys.modules)
assert not engines, f"imported by swingshift: {engines}"
assert all("site-packages" in path for path in swingshift.__path__), list(swingshift.__path__)
print(f"wheel: {len(names) + len(modules)} modules imported with the base dependencies alone")
"""


def run(step: str, *command: str | Path, cwd: Path) -> None:
    if subprocess.run([str(part) for part in command], cwd=cwd, check=False).returncode:
        sys.exit(f"wheel: failed to {step}; the reason is above")


def build_wheel(folder: Path) -> Path:
    """Build the sdist, and the wheel from what the sdist holds."""
    log = folder / "build.log"
    with log.open("w", encoding="utf-8") as output:
        built = subprocess.run(
            [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)],
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if built.returncode:
        sys.exit(log.read_text(encoding="utf-8"))
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """Compare the wheel with the sources, so that packaged data cannot be forgotten."""
    sources = {
        path.relative_to(ROOT / part).as_posix()
        for part in PARTS
        for path in (ROOT / part / "swingshift").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("swingshift/")}
    if sources != packed:
        sys.exit(f"wheel: files that only sources or wheel have: {sorted(sources ^ packed)}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="swingshift-wheel-") as name:
        folder = Path(name)
        wheel = build_wheel(folder)
        check_contents(wheel)
        environment = folder / "env"
        venv.create(environment)
        python = environment / "bin" / "python"
        pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
        constraints = ROOT / "constraints.txt"
        run("install it", *pip, "install", "-qq", "-c", constraints, wheel, cwd=folder)
        run("import it", python, "-I", "-c", PROBE, ",".join(EXTRA_MODULES), *PARTS, cwd=folder)
        run("start it", environment / "bin" / "swingshift", "--version", cwd=folder)


if __name__ == "__main__":
    main()
