"""Installs and starts Triton, which tests compare behaviour with and benchmarks compare speed with.

The wheel `nvidia-pytriton` contains tritonserver 2.51 with its Python backend, and `tritonclient`
2.50 contains perf_analyzer. libb64 comes from the distribution. Everything is installed in one
folder, $NAIAD_ORACLE_HOME or the user's cache.
Rule: this file imports nothing of Naiad, and Naiad's environment contains nothing of Triton.

    python -m bench.oracle install
    python -m bench.oracle serve REPOSITORY [tritonserver flags]
    python -m bench.oracle perf_analyzer [flags]
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

WHEELS = ("nvidia-pytriton==0.7.0", "tritonclient[all]==2.50.0", "nvidia-cuda-runtime-cu12")
VERSION = "2.51.0"


def home() -> Path:
    folder = os.environ.get("NAIAD_ORACLE_HOME")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(folder) if folder else cache / "naiad" / "triton-oracle"


def is_installed() -> bool:
    return (home() / "ready").exists()


def install() -> Path:
    """Installs Triton unless it is installed. Restarts an interrupted installation."""
    folder = home()
    if is_installed():
        return folder
    if sys.version_info[:2] > (3, 13):
        raise SystemExit("Triton's Python stub supports only Python 3.8 to 3.13")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    subprocess.run(
        [_venv_python(), "-m", "pip", "install", "-q", "--disable-pip-version-check", *WHEELS],
        check=True,
    )
    _install_libb64()
    _lay_out(folder)
    (folder / "ready").touch()
    return folder


def _venv_python() -> str:
    return str(home() / "venv" / "bin" / "python")


def _install_libb64() -> None:
    if ctypes.util.find_library("b64") or _ldconfig_knows("libb64.so.0d"):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SystemExit("Triton needs libb64.so.0d: install the package libb64-0d")
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(
        ["apt-get", "install", "-y", "-qq", "libb64-0d"], check=True, stdout=subprocess.DEVNULL
    )


def _ldconfig_knows(library: str) -> bool:
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    return library in subprocess.run([ldconfig, "-p"], capture_output=True, text=True).stdout


def _site() -> Path:
    """Returns the site-packages of the environment."""
    return next((home() / "venv" / "lib").glob("python*/site-packages"))


def _lay_out(folder: Path) -> None:
    """Copies the Python backend and the stub for this interpreter into one folder, and links
    libcudart where the linker finds it."""
    triton = _site() / "pytriton" / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    backend = folder / "backends" / "python"
    shutil.copytree(triton / "backends" / "python", backend, dirs_exist_ok=True)
    shutil.copy2(triton / "python_backend_stubs" / version / "triton_python_backend_stub", backend)
    (folder / "lib").mkdir(exist_ok=True)
    (folder / "lib" / "libcudart.so.12").symlink_to(
        _site() / "nvidia" / "cuda_runtime" / "lib" / "libcudart.so.12"
    )


def serve_command(repositories: list[str], flags: list[str]) -> list[str]:
    server = install() / "backends"
    return [
        str(_site() / "pytriton" / "tritonserver" / "bin" / "tritonserver"),
        *(f"--model-repository={repository}" for repository in repositories),
        f"--backend-directory={server}",
        f"--cache-directory={_site() / 'pytriton' / 'tritonserver' / 'caches'}",
        *flags,
    ]


def serve_environment() -> dict[str, str]:
    """Puts the environment first in PATH, where the stub looks for its interpreter. With another
    numpy it returns wrong tensors."""
    site, libpython = _site(), sysconfig.get_config_var("LIBDIR")
    return {
        **os.environ,
        "PATH": f"{home() / 'venv' / 'bin'}:{os.environ.get('PATH', '')}",
        "LD_LIBRARY_PATH": f"{site / 'nvidia_pytriton.libs'}:{libpython}",
        "PYTHONPATH": str(site),
    }


def perf_analyzer_command(flags: list[str]) -> list[str]:
    return [str(install() / "venv" / "bin" / "perf_analyzer"), *flags]


def perf_analyzer_environment() -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(home() / "lib")}


def main(arguments: list[str]) -> None:
    match arguments:
        case ["install"]:
            print(install())
        case ["serve", repository, *flags]:
            command = serve_command([repository], flags)
            os.execve(command[0], command, serve_environment())
        case ["perf_analyzer", *flags]:
            command = perf_analyzer_command(flags)
            os.execve(command[0], command, perf_analyzer_environment())
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
