"""Other people's clients and tools against a server of ours, unmodified, each in an environment of
its own under build/ecosystem: `make ecosystem`, or `python -m tests.ecosystem.run NAME ...`.

In:  clients/NAME.py, .mjs or .sh, which ends with 0 when all that it looked at is right. Out: a
     table with the versions of what ran.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from tests.server.harness import Server, naiad
from tests.server.llm_repository import write_repository

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build" / "ecosystem"
LIMIT_S = 300


class Tool(msgspec.Struct, frozen=True):
    name: str
    packages: tuple[str, ...]
    """The first one's version stands in the table."""
    client: str

    @property
    def folder(self) -> Path:
        return BUILD / self.name

    @property
    def is_node(self) -> bool:
        return self.client.endswith(".mjs")


TOOLS = [
    Tool("openai", ("openai",), "openai.py"),
    Tool("litellm", ("litellm",), "litellm.py"),
    Tool("lm-eval", ("lm-eval[api]", "transformers"), "lm_eval.py"),
    Tool("genai-perf", ("genai-perf",), "genai_perf.sh"),
    Tool("kserve", ("kserve",), "kserve.py"),
    Tool("openai-node", ("openai",), "openai.mjs"),
    Tool("grpc-js", ("@grpc/grpc-js", "@grpc/proto-loader"), "grpc.mjs"),
]


def install(tool: Tool) -> None:
    """Raises CalledProcessError."""
    if tool.is_node:
        tool.folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--silent", "--no-fund", "--no-audit", *tool.packages]
        subprocess.run(command, cwd=tool.folder, check=True)
        return
    python = tool.folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(tool.folder)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "-q", *tool.packages], check=True)


def version(tool: Tool) -> str:
    name = tool.packages[0].partition("[")[0]
    if tool.is_node:
        package = tool.folder / "node_modules" / name / "package.json"
        return str(msgspec.json.decode(package.read_bytes())["version"])
    code = f"from importlib.metadata import version; print(version({name!r}))"
    command = [str(tool.folder / "bin" / "python"), "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run(tool: Tool, server: Server, checkpoint: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "NAIAD_HTTP": server.http,
        "NAIAD_GRPC": server.grpc,
        "NAIAD_CHECKPOINT": str(checkpoint),
        "NAIAD_ROOT": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "NO_PROXY": "*",
        # perf_analyzer is ours
        "PATH": f"{Path(sys.executable).parent}:{tool.folder / 'bin'}:{os.environ['PATH']}",
    }
    client = HERE / "clients" / tool.client
    if tool.is_node:  # modules are looked for beside the file
        copy = tool.folder / tool.client
        copy.write_text(client.read_text())
        command = ["node", str(copy)]
    elif client.suffix == ".sh":
        command = ["bash", "-euo", "pipefail", str(client)]
    else:
        # Not as a file: its folder would come first among the modules, with files of their names.
        python = str(tool.folder / "bin" / "python")
        command = [python, "-c", client.read_text()]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def main(names: list[str]) -> int:
    tools = [tool for tool in TOOLS if not names or tool.name in names]
    failed = []
    with tempfile.TemporaryDirectory() as name:
        repository = write_repository(Path(name))
        flags = [
            "--model-control-mode=explicit",
            *(f"--load-model={model}" for model in ("tiny", "tiny_vllm", "add_sub", "words")),
        ]
        repositories = [str(repository), str(ROOT / "examples" / "repository")]
        with naiad(repositories, flags) as server:
            for tool in tools:
                install(tool)
                done = run(tool, server, Path(name) / "checkpoint")
                result = "ok" if done.returncode == 0 else "FAILED"
                print(f"{tool.name:14} {version(tool):12} {result}", flush=True)
                if done.returncode:
                    failed.append(tool.name)
                    print((done.stdout + done.stderr)[-3000:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
