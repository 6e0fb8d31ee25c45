"""Turns what somebody fills in into files of a repository: reads the model, writes its config,
checks it, and puts it into place.

In:  a name and a Spec. Out: what was found in the model, a Preview of the config with its problems,
     or a Placed change that can be undone.
Rule: everything here blocks, and is called in a thread. Nothing here loads a model; a preview
      changes nothing but its own staging folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from naiad.errors import Code, NaiadError, invalid_arg, not_found
from naiad.ipc.completion_request import Example
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.check.check import check_repository
from naiad.repository.config.autocomplete import fill_backend, fill_instance_groups
from naiad.repository.config.config import ConfigOptions
from naiad.repository.config.pbtxt import parse_text
from naiad.repository.config.problem import InvalidConfigError
from naiad.repository.deploy.catalogue import STARTERS
from naiad.repository.deploy.change import HIDDEN_FOLDER, LOOK, Change, link_or_copy, recover
from naiad.repository.deploy.command_line import command_line
from naiad.repository.deploy.config_text import edit_text, unified_diff
from naiad.repository.deploy.draft import DraftLimits, Drafts
from naiad.repository.deploy.inspection import read_from_model
from naiad.repository.deploy.layout import Layout, plan_layout
from naiad.repository.deploy.llm_config import llm_config
from naiad.repository.deploy.memory_estimate import Estimate, estimate_memory
from naiad.repository.deploy.preview import (
    Existing,
    Found,
    FoundFile,
    Place,
    Preview,
    PreviewProblem,
    ProcessOffer,
)
from naiad.repository.deploy.proposal import (
    Placed,
    Proposal,
    is_in_version,
    read_text,
    write_content,
)
from naiad.repository.deploy.source import (
    inspect_checkpoint,
    is_torchscript,
    model_files,
    read_source,
    suggest_name,
)
from naiad.repository.deploy.spec import (
    Source,
    Spec,
    apply_spec,
    archive_name,
    check_new_name,
)
from naiad.repository.deploy.starter import starter_files
from naiad.repository.deploy.view import ConfigView, view_config
from naiad.repository.environment.interpreters import installed_pythons
from naiad.repository.environment.python_environment import REQUIREMENTS
from naiad.repository.reading_process import Readers
from naiad.repository.scan import CONFIG_FILE, scan_model
from naiad.worker.import_backend import BACKENDS

TEMPORARY_PREFIX = "naiad-model-"
"""The folders of `naiad serve --model`."""


class Deployer:
    def __init__(
        self,
        folders: Sequence[Path],
        options: ConfigOptions,
        limits: DraftLimits,
        environment: Mapping[str, str] | None = None,
        offer: ProcessOffer | None = None,
    ) -> None:
        """`folders` are the local repositories. `environment` holds the variables of a process that
        opens a model file."""
        self._offer = offer or ProcessOffer()
        self._path = (environment or os.environ).get("PATH", os.defpath)
        self._folders = list(folders)
        self._options = options
        self._readers = Readers(environment)
        self.limits = limits
        self._drafts = {folder: Drafts(folder, limits, self._readers) for folder in self._folders}

    @property
    def gpus(self) -> tuple[int, ...]:
        return self._options.gpus

    def offer(self) -> ProcessOffer:
        """What a form may offer for the processes of a model."""
        return msgspec.structs.replace(self._offer, pythons=list(installed_pythons(self._path)))

    def stop(self) -> None:
        """Ends the processes that read models."""
        self._readers.stop()

    def recover(self) -> None:
        """Undoes what a server that was killed had begun."""
        for folder in self._folders:
            recover(folder)

    # Repositories and drafts.

    def places(self) -> list[Place]:
        temporary = Path(tempfile.gettempdir())
        return [
            Place(
                str(folder),
                os.access(folder, os.W_OK | os.X_OK),
                folder.parent == temporary and folder.name.startswith(TEMPORARY_PREFIX),
            )
            for folder in self._folders
        ]

    def drafts(self, draft_id: str) -> Drafts:
        """The drafts that this one is among. Raises NaiadError."""
        for drafts in self._drafts.values():
            if drafts.has(draft_id):
                return drafts
        raise not_found(
            f"there is no draft '{draft_id[:32]}': it was deployed, discarded or has expired"
        )

    def new_drafts(self, location: str) -> Drafts:
        return self._drafts[self._repository(location)]

    def _repository(self, location: str) -> Path:
        places = [place for place in self.places() if place.is_writable]
        if not places:
            raise NaiadError(
                Code.PERMISSION_DENIED,
                "the server may not write to any of its model repositories",
            )
        lasting = [place for place in places if not place.is_temporary] or places
        chosen = [place for place in places if place.location == location]
        if location and not chosen:
            raise invalid_arg(f"repository: '{location}' is not one that the server may write to")
        return Path((chosen or lasting)[0].location)

    def find(self, name: str) -> Path | None:
        """The folder of a model that exists. The name is one part of a path: it must not lead
        elsewhere, and what begins with a dot is not a model."""
        if not name or name.startswith(".") or any(char in name for char in "/\\\0"):
            return None
        for folder in self._folders:
            if (folder / name).is_dir():
                return folder / name
        return None

    # What is there.

    def read_existing(self, name: str) -> Existing:
        folder = self.find(name)
        if folder is None:
            raise not_found(f"there is no model '{name}' in a local repository")
        text, problem, config = read_text(folder / CONFIG_FILE) or "", "", None
        try:
            config = self._view(text, folder)
        except NaiadError as error:
            problem = error.message
        return Existing(
            name=name,
            repository=str(folder.parent),
            is_writable=os.access(folder, os.W_OK | os.X_OK),
            text=text,
            base=text_hash(text),
            versions=list(scan_model(folder).versions),
            config=config,
            requirements=read_text(folder / REQUIREMENTS) or "",
            problem=problem,
        )

    def _view(self, text: str, folder: Path) -> ConfigView:
        """Raises NaiadError if the text is not a config."""
        parsed = parse_text(text, ModelConfig, f"{folder.name}/{CONFIG_FILE}")
        written = parsed.message
        completed = ModelConfig()
        completed.CopyFrom(written)
        with contextlib.suppress(NaiadError):
            fill_backend(completed, folder.name, _newest_files(folder))
        return view_config(written, completed.backend or completed.platform)

    # What a source tells.

    def inspect(self, source: Source, examples: list[Example]) -> Found:
        """Raises NaiadError for a source that is not a model."""
        match source.kind:
            case "files":
                return self._inspect_files(source.value, examples)
            case "checkpoint" | "hub":
                return inspect_checkpoint(source)
            case "catalogue":
                if source.value in STARTERS:
                    return self._inspect_starter(source.value)
                return inspect_checkpoint(source)
        existing = self.read_existing(source.value)
        return Found(
            backend=existing.config.backend if existing.config else "",
            name=source.value,
            config=existing.config,
            note=existing.problem,
        )

    def _inspect_files(self, draft_id: str, examples: list[Example]) -> Found:
        drafts = self.drafts(draft_id)
        files = model_files(drafts.complete_files(draft_id))
        layout = plan_layout(files)
        shown = [
            FoundFile(path, layout.target(path, 1), file.stat().st_size)
            for path, file in sorted(files.items())
        ]
        name = suggest_name(layout.name)
        if layout.is_checkpoint:
            view = view_config(parse_text(llm_config("."), ModelConfig, "").message, "llm")
            return Found(backend="llm", name=name, files=shown, config=view)
        with self._staging() as root:
            folder = root / (name or "model")
            _stage_files(folder, layout, files, 1)
            return self._inspect_folder(folder, name, shown, examples)

    def _inspect_starter(self, item: str) -> Found:
        with self._staging() as root:
            folder = root / item
            for target, content in starter_files(STARTERS[item]).items():
                write_content(folder / target, content)
            found = self._inspect_folder(folder, item, [], [])
            return msgspec.structs.replace(found, name=item)

    def _inspect_folder(
        self, folder: Path, name: str, files: list[FoundFile], examples: list[Example]
    ) -> Found:
        text = read_text(folder / CONFIG_FILE) or ""
        view = self._view(text, folder)
        if not view.inputs and not view.outputs:
            if not examples and is_torchscript(folder):
                return Found(
                    backend=view.backend, name=name, files=files, config=view, needs_example=True
                )
            try:
                config = read_from_model(folder, examples, self._readers)
            except InvalidConfigError as error:
                raise invalid_arg(error.message) from None
            except NaiadError as error:
                return Found(
                    backend=view.backend,
                    name=name,
                    files=files,
                    config=view,
                    needs_example=view.backend == "pytorch",
                    note=error.message,
                )
            if config is not None:
                # Reading fills in Triton's defaults, which nobody would write.
                config.dynamic_batching.ClearField("preferred_batch_size")
                told = view_config(config, config.backend)
                view = msgspec.structs.replace(
                    view,
                    max_batch_size=told.max_batch_size,
                    inputs=told.inputs,
                    outputs=told.outputs,
                    batching=told.batching,
                )
        note = ""
        if view.backend == "python" and not view.inputs:
            note = (
                "A Python model names its inputs and outputs here, or in its function"
                " auto_complete_config."
            )
        return Found(backend=view.backend, name=name, files=files, config=view, note=note)

    # What will be written.

    def preview(self, name: str, spec: Spec, address: str) -> Preview:
        """Raises NaiadError for a spec that no config can be made of."""
        proposal = self._propose(name, spec)
        parsed: ConfigView | None = None
        memory: Estimate | None = None
        with contextlib.suppress(NaiadError):
            parsed = self._view(proposal.text, proposal.folder)
        with self._staging() as root:
            folder = root / name
            proposal.mirror(folder)
            problems = self._check(root, name)
            if parsed is not None:
                memory = self._estimate(proposal, folder)
        old_text = proposal.old_text
        diff = ""
        if old_text is not None:
            diff = unified_diff(old_text, proposal.text, f"{name}/{CONFIG_FILE}")
        is_changed = old_text != proposal.text
        return Preview(
            is_new=proposal.is_new,
            text=proposal.text,
            old_text=old_text,
            diff=diff,
            config=parsed,
            problems=problems,
            command=command_line(
                proposal.folder,
                proposal.text if is_changed else None,
                proposal.shown_copies(),
                spec.version,
                address,
            ),
            memory=memory,
            version=spec.version,
        )

    def _propose(self, name: str, spec: Spec) -> Proposal:
        """Raises NaiadError."""
        folder = self.find(name)
        if folder is None:
            if spec.source.kind == "repository":
                raise not_found(f"there is no model '{name}' in a local repository")
            check_new_name(name)
            folder = self._repository(spec.repository) / name
        old_text = read_text(folder / CONFIG_FILE)
        if spec.base and spec.base != text_hash(old_text or ""):
            raise NaiadError(
                Code.ALREADY_EXISTS,
                f"{name}/{CONFIG_FILE} was changed by somebody else since this form was opened; "
                "open the model again to see it",
            )
        source = read_source(spec, self.drafts)
        files, contents = source.files, source.contents
        contents.pop(CONFIG_FILE, None)
        files.pop(CONFIG_FILE, None)
        self._check_targets(folder, files, contents)
        if spec.environment is not None and spec.environment.kind == "requirements":
            contents[REQUIREMENTS] = spec.environment.requirements
        elif spec.environment is not None and spec.environment.archive:
            files[archive_name(spec.environment)] = self._archive(spec.environment.archive)
        has_requirements = (folder / REQUIREMENTS).is_file() and spec.environment is not None
        removed = [REQUIREMENTS] if has_requirements and REQUIREMENTS not in contents else []
        text = spec.text
        if text == "" and old_text is not None:
            # An edit is undone for a model that had no file.
            removed.append(CONFIG_FILE)
        if text is None:
            base = old_text if old_text is not None else source.config
            old = parse_text(base, ModelConfig, f"{name}/{CONFIG_FILE}").message
            new = ModelConfig()
            new.CopyFrom(old)
            apply_spec(spec, new)
            text = edit_text(base, old, new)
        return Proposal(
            name=name,
            spec=spec,
            folder=folder,
            old_text=old_text,
            text=text,
            files=files,
            contents=contents,
            removed=removed,
        )

    def _archive(self, archive: str) -> Path:
        """The uploaded archive of a Python environment. Raises NaiadError."""
        draft_id, _, path = archive.partition("/")
        files = self.drafts(draft_id).complete_files(draft_id)
        if path not in files:
            raise invalid_arg(f"environment: the draft has no file '{path}'")
        return files[path]

    def _check_targets(
        self, folder: Path, files: dict[str, Path], contents: dict[str, str | bytes]
    ) -> None:
        """A version that exists is never changed: what serves from it must not change under it."""
        for target in (*files, *contents):
            top = target.partition("/")[0]
            if is_in_version(target) and (folder / top).exists():
                raise invalid_arg(
                    f"version: version {top} of '{folder.name}' exists already; choose another"
                )

    @contextlib.contextmanager
    def _staging(self) -> Iterator[Path]:
        """A folder in a repository's file system, for as long as something is looked at."""
        parent = self._repository("") / HIDDEN_FOLDER
        parent.mkdir(mode=0o700, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=LOOK, dir=parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _check(self, root: Path, name: str) -> list[PreviewProblem]:
        backends = frozenset(BACKENDS) | self._options.other_backends
        findings = check_repository([root], options=self._options, backends=backends)
        return [
            PreviewProblem(
                finding.severity.value,
                finding.problem.brief or finding.problem.message,
                finding.problem.path,
                finding.problem.file,
                finding.problem.position.line if finding.problem.position else 0,
                finding.problem.found,
                finding.problem.expected,
                finding.problem.fix,
            )
            for finding in findings
            if finding.model == name
        ]

    def _estimate(self, proposal: Proposal, folder: Path) -> Estimate:
        config = parse_text(proposal.text, ModelConfig, "").message
        with contextlib.suppress(NaiadError):
            fill_backend(config, folder.name, _newest_files(folder))
        fill_instance_groups(config, self._options.gpus)
        versions = scan_model(folder).versions
        newest = versions[max(versions)] if versions else None
        return estimate_memory(config, newest, folder, len(self._options.gpus))

    # Writing it.

    def place(self, name: str, spec: Spec) -> Placed:
        """Puts the files into the repository. Raises NaiadError, and then nothing has changed."""
        proposal = self._propose(name, spec)
        if not proposal.is_new and not os.access(proposal.folder, os.W_OK | os.X_OK):
            raise NaiadError(Code.PERMISSION_DENIED, f"the server may not write to '{name}'")
        change = Change(proposal.folder.parent)
        is_new = proposal.is_new
        try:
            proposal.place(change)
        except OSError as error:
            change.undo()
            raise invalid_arg(f"the files cannot be written: {error}") from error
        except BaseException:
            change.undo()
            raise
        return Placed(change, is_new=is_new, drop=partial(self._drop_drafts, spec))

    def _drop_drafts(self, spec: Spec) -> None:
        ids = {spec.source.value} if spec.source.kind == "files" else set()
        if spec.environment is not None and spec.environment.archive:
            ids.add(spec.environment.archive.partition("/")[0])
        for drafts in self._drafts.values():
            for draft_id in ids:
                drafts.remove(draft_id)


def text_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _stage_files(folder: Path, layout: Layout, files: dict[str, Path], version: int) -> None:
    (folder / str(version)).mkdir(parents=True)
    for path, file in files.items():
        link_or_copy(file, folder / layout.target(path, version))


def _newest_files(folder: Path) -> list[str]:
    versions = scan_model(folder).versions if folder.is_dir() else {}
    try:
        return os.listdir(versions[max(versions)]) if versions else []
    except OSError:
        return []
