"""`naiad check`: finds every problem of model repositories without starting a server.

In:  the paths of model repositories. Out: findings, each with file, line, what was found, what was
     expected and the likely fix.
Rule: an error is a problem that would fail the load on any machine; a warning is very probably a
      mistake, or something that only this machine lacks.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from naiad.core.installed_backends import installed_backends
from naiad.errors import NaiadError
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.agents import check_agents
from naiad.repository.check.files import (
    check_data_files,
    check_model_files,
    check_versions,
    completes_itself,
)
from naiad.repository.check.finding import Finding, Severity, render_finding, render_findings
from naiad.repository.check.framework_files import LLM_BACKENDS, check_checkpoint
from naiad.repository.check.layout import (
    EMPTY,
    EMPTY_EXPECTED,
    is_model_directory,
    loose_file,
    misplaced_file,
)
from naiad.repository.check.machine import LACKING, check_instance_count, check_machine
from naiad.repository.check.model_reader import may_open, read_model
from naiad.repository.check.packages import IsInstalled, check_package, is_installed
from naiad.repository.config.config import (
    ConfigOptions,
    ModelConfigFile,
    config_path,
    read_model_config,
)
from naiad.repository.config.ensemble_fit import cycle_message, find_cycle, validate_ensemble
from naiad.repository.config.problem import InvalidConfigError, Problem, ProblemList
from naiad.repository.config.suggestion import nearest
from naiad.repository.config.validate import validate_config
from naiad.repository.load.before_start import require_readable, require_startable
from naiad.repository.load.ensemble_parts import LATEST_VERSION
from naiad.repository.model_source import CONFIGURING_BACKENDS
from naiad.repository.scan import (
    CONFIG_FILE,
    ModelDirectory,
    missing_versions,
    scan_repository,
    select_versions,
)
from naiad.settings import Settings
from naiad.worker.import_backend import BACKENDS

MAX_INSTANCES = Settings().max_model_instances
WARNINGS = LACKING | {"no-tensors", "python-execute"}
"""Problems of a model that loads, here or on another machine."""
__all__ = ["Finding", "Severity", "check_repository", "render_finding", "render_findings"]


class _Model(msgspec.Struct, frozen=True):
    repository: Path
    directory: ModelDirectory
    file: ModelConfigFile | None
    """None if the configuration cannot be read."""
    is_sound: bool
    config: ModelConfig | None = None
    """As completed by the model file, where check may open it."""
    is_final: bool = True
    """The model does not add tensors to it when it is loaded."""


def check_repository(
    paths: Sequence[Path],
    *,
    options: ConfigOptions | None = None,
    backends: Collection[str] = frozenset(BACKENDS),
    is_installed: IsInstalled = is_installed,
    should_open: bool = False,
) -> list[Finding]:
    """`backends` are the known backends. A server with a --backend-directory knows more.
    `is_installed` tells whether a package can be imported. `should_open` opens model files of
    frameworks as a load does, which takes a second for each."""
    return _Check(options or ConfigOptions(), backends, is_installed, should_open).run(paths)


class _Check:
    def __init__(
        self,
        options: ConfigOptions,
        backends: Collection[str],
        is_installed: IsInstalled,
        should_open: bool,
    ) -> None:
        self._is_installed = is_installed
        self._should_open = should_open
        self._options = options
        self._backends = backends
        self._findings: list[Finding] = []
        self._models: list[_Model] = []

    def run(self, paths: Sequence[Path]) -> list[Finding]:
        for path in paths:
            for directory in self._scan(path):
                try:
                    model = self._check_model(path, directory)
                except OSError as error:
                    self._add(Severity.ERROR, path, directory.name, _unreadable(error, path))
                    model = _Model(path, directory, None, is_sound=False)
                self._models.append(model)
        self._check_duplicates()
        self._check_ensembles()
        return self._findings

    def _add(self, severity: Severity, repository: Path, model: str, problem: Problem) -> None:
        self._findings.append(Finding(severity, repository, model, problem))

    def _scan(self, path: Path) -> list[ModelDirectory]:
        if is_model_directory(path):
            has_config = (path / CONFIG_FILE).is_file()
            problem = Problem(
                code="not-a-repository",
                message="this is a model, not a repository of models",
                found=f"{CONFIG_FILE} directly in it" if has_config else "only version directories",
                expected="a directory that holds one directory per model",
                fix=f"use its parent directory: {path.resolve().parent}",
            )
            self._add(Severity.ERROR, path, "", problem)
            return []
        try:
            directories = scan_repository(path)
        except NaiadError as error:
            self._add(
                Severity.ERROR,
                path,
                "",
                Problem(code="unreadable", message=error.message, expected="a readable directory"),
            )
            return []
        if not directories:
            problem = Problem(
                code="empty-repository",
                message=EMPTY,
                expected=EMPTY_EXPECTED,
                fix=loose_file(path),
            )
            self._add(Severity.WARNING, path, "", problem)
        return directories

    def _check_model(self, repository: Path, directory: ModelDirectory) -> _Model:
        def add(severity: Severity, problems: Collection[Problem]) -> None:
            for problem in problems:
                self._add(severity, repository, directory.name, problem)

        add(Severity.WARNING, list(_misplaced_configs(directory, self._options)))
        try:
            file = read_model_config(directory.path, options=self._options)
        except InvalidConfigError as error:
            misplaced = misplaced_file(directory.path)
            if misplaced and error.problems[0].code == "no-backend":
                name = directory.name
                fix = f"move {name}/{misplaced} to {name}/1/{misplaced}"
                error.problems[0] = msgspec.structs.replace(error.problems[0], fix=fix)
            add(Severity.WARNING, directory.warnings)
            add(Severity.ERROR, error.problems)
            return _Model(repository, directory, None, is_sound=False)
        add(Severity.WARNING, file.directory.warnings)
        config, problems = self._judge(file)
        errors = [problem for problem in problems if problem.code not in WARNINGS]
        warnings = [problem for problem in problems if problem.code in WARNINGS]
        add(Severity.ERROR, errors)
        add(Severity.WARNING, [*file.notes, *warnings, *_check_doubtful(file)])
        return _Model(repository, directory, file, not errors, config, self._is_final(file, config))

    def _judge(self, file: ModelConfigFile) -> tuple[ModelConfig, list[Problem]]:
        """Returns the config as the model file completes it, too."""
        is_final = self._is_final(file, file.config)
        problems = [
            problem
            for problem in validate_config(file.config, lines=file.lines, options=self._options)
            # They may name tensors that the model adds.
            if is_final or not problem.path.startswith(("batch_input", "batch_output"))
        ]
        if file.misnamed is not None:
            problems.append(file.misnamed)
        problems += [*self._check_backend(file), *check_versions(file), *check_data_files(file)]
        problems += [*check_package(file, self._is_installed), *check_machine(file)]
        if file.config.backend in LLM_BACKENDS:
            problems += check_checkpoint(file, self._is_installed)
        problems += check_model_files(file, self._is_installed, opens_files=self._should_open)
        if any(problem.code not in WARNINGS for problem in problems):
            return file.config, problems
        config, more = self._load(file)
        return config, problems + [problem for problem in more if problem not in problems]

    def _load(self, file: ModelConfigFile) -> tuple[ModelConfig, list[Problem]]:
        """What a load reads and refuses before it starts a worker, and what it reads from a model
        file."""
        config, directory, place = file.config, file.directory.path, ""
        versions = select_versions(file.versions, config.version_policy)
        problems: list[Problem] = []
        try:
            if not config.HasField("ensemble_scheduling"):
                check_agents(config, directory)
                require_startable(config, MAX_INSTANCES)
            for version in versions if self._should_open else []:
                path = file.directory.versions[version] / config.default_model_filename
                if may_open(file.config, path, self._is_installed):
                    place = f"{config.name}/{version}/{path.name}"
                    config = read_model(file.config, version, directory, self._options)
                    problems = validate_config(config, lines=file.lines, options=self._options)
            place = ""
            if self._is_final(file, config):
                require_readable(config, versions, directory)
        except NaiadError as error:
            problems.append(_load_problem(file, place, error))
        return config, problems

    def _is_final(self, file: ModelConfigFile, config: ModelConfig) -> bool:
        """The model does not add tensors to this config when it is loaded."""
        if (config.input and config.output) or config.HasField("ensemble_scheduling"):
            return True
        if not self._options.is_auto_complete_enabled:
            return True
        if config.backend == "python":
            return not completes_itself(file)
        return config.backend not in CONFIGURING_BACKENDS | self._options.other_backends

    def _check_backend(self, file: ModelConfigFile) -> list[Problem]:
        backend = file.config.backend
        if not backend or backend in self._backends or backend in installed_backends():
            return []
        found = ProblemList(file.lines)
        near = nearest(backend, self._backends)
        message = (
            f"unable to find backend library for backend '{backend}', try specifying runtime on "
            "the model configuration."
        )
        expected = "one of " + ", ".join(sorted(self._backends))
        fix = f"did you mean '{near}'?" if near else ""
        if backend == "tensorrt":
            fix = "a TensorRT engine needs TensorRT: serve the ONNX model that it was built from"
        found.add(
            "backend-unknown",
            message,
            "backend",
            found=backend,
            expected=expected,
            fix=fix,
        )
        return found.problems

    def _check_duplicates(self) -> None:
        counts = Counter(model.directory.name for model in self._models)
        for model in self._models:
            name = model.directory.name
            if counts[name] > 1:
                others = [
                    str(m.repository)
                    for m in self._models
                    if m.directory.name == name and m is not model
                ]
                problem = Problem(
                    code="duplicate-model",
                    message="model appears in two or more repositories",
                    file=name,
                    found=f"'{name}' also in {', '.join(others)}",
                    expected="each model once",
                    fix="rename or remove one of them, or serve with --model-namespacing=true",
                )
                self._add(Severity.ERROR, model.repository, name, problem)

    def _check_ensembles(self) -> None:
        by_name = {model.directory.name: model for model in self._models}
        configs = {name: model.config for name, model in by_name.items() if model.config}
        ensembles = {
            name: config
            for name, config in configs.items()
            if config.HasField("ensemble_scheduling")
        }
        cycle = find_cycle(ensembles)
        for name, ensemble in ensembles.items():
            model = by_name[name]
            if not model.is_sound or not model.file:
                continue
            if name in cycle:
                turned = cycle[cycle.index(name) :] + cycle[: cycle.index(name)]
                self._add_ensemble_problem(model, turned)
                continue
            self._fit_ensemble(model, ensemble, configs, by_name)
            self._check_step_versions(model, ensemble, by_name)

    def _fit_ensemble(
        self,
        model: _Model,
        ensemble: ModelConfig,
        configs: dict[str, ModelConfig],
        by_name: dict[str, _Model],
    ) -> None:
        """A step can be compared only if the config of its model is valid and names its tensors."""
        assert model.file
        names = {step.model_name for step in ensemble.ensemble_scheduling.step} & by_name.keys()
        broken = {name for name in names if not by_name[name].is_sound}
        unknown = {name for name in names - broken if not by_name[name].is_final}
        known = {name: configs[name] for name in configs if name not in broken}
        fit = validate_ensemble(
            ensemble,
            known | dict.fromkeys(broken, ModelConfig()),
            lines=model.file.lines,
            unknown=broken | unknown,
        )
        problems = [(Severity.ERROR, problem) for problem in fit.errors]
        problems += [(Severity.WARNING, problem) for problem in fit.doubts]
        if self._should_open:
            problems += [(Severity.WARNING, _not_compared(model.file, name)) for name in unknown]
        for severity, problem in problems:
            self._add(severity, model.repository, ensemble.name, problem)

    def _add_ensemble_problem(self, model: _Model, cycle: list[str]) -> None:
        assert model.file
        found = ProblemList(model.file.lines)
        path = "ensemble_scheduling"
        shown = " -> ".join([*cycle, cycle[0]])
        found.add(
            "ensemble-cycle",
            cycle_message(cycle),
            path,
            found=shown,
            expected="ensembles whose steps lead to models",
            fix="break the cycle",
        )
        self._add(Severity.ERROR, model.repository, model.directory.name, found.problems[0])

    def _check_step_versions(
        self, model: _Model, ensemble: ModelConfig, by_name: dict[str, _Model]
    ) -> None:
        assert model.file
        found = ProblemList(model.file.lines)
        for index, step in enumerate(ensemble.ensemble_scheduling.step):
            other = by_name.get(step.model_name)
            if step.model_version == LATEST_VERSION or other is None or other.file is None:
                continue
            served = select_versions(other.file.versions, other.file.config.version_policy)
            if step.model_version not in served:
                message = (
                    f"ensemble '{ensemble.name}' depends on '{step.model_name}' whose required "
                    f"version {step.model_version} is not loaded."
                )
                path = f"ensemble_scheduling.step[{index}].model_version"
                expected = f"-1 for the latest, or one of: {', '.join(map(str, served)) or 'none'}"
                fix = "write model_version: -1"
                found.add(
                    "ensemble-version",
                    message,
                    path,
                    found=f"model_version {step.model_version}",
                    expected=expected,
                    fix=fix,
                )
        for problem in found.problems:
            self._add(Severity.ERROR, model.repository, ensemble.name, problem)


def _load_problem(file: ModelConfigFile, place: str, error: NaiadError) -> Problem:
    """`place` is the model file, if it was being read."""
    message, _, advice = error.message.strip("\n").partition(". Put this into ")
    config = file.lines.file_name or file.config.name
    return Problem(
        code="load",
        message=message,
        file=place or config,
        expected="" if advice else "a config that fits the model",
        fix=f"put this into {advice}" if advice else "",
    )


def _not_compared(file: ModelConfigFile, part: str) -> Problem:
    found = ProblemList(file.lines)
    index = next(
        at
        for at, step in enumerate(file.config.ensemble_scheduling.step)
        if step.model_name == part
    )
    found.add(
        "ensemble-unknown",
        f"ensemble {file.config.name} is not compared with {part}, which names its tensors only "
        "when it is loaded",
        f"ensemble_scheduling.step[{index}].model_name",
        found="no inputs and outputs",
        expected=f"input and output in {part}/config.pbtxt, or naiad check --load",
    )
    return found.problems[0]


def _check_doubtful(file: ModelConfigFile) -> list[Problem]:
    config = file.config
    found = ProblemList(file.lines)
    is_served = bool(select_versions(file.versions, config.version_policy))
    for version in missing_versions(file.versions, config.version_policy) if is_served else []:
        message = (
            f"version {version} is specified for model '{config.name}', but the version "
            "directory is not present"
        )
        shown = f"versions {', '.join(map(str, file.versions)) or 'none'}"
        found.add(
            "version-missing",
            message,
            "version_policy",
            found=shown,
            expected=f"a directory {config.name}/{version}",
        )
    for kind, names in (
        ("input", [t.name for t in config.input]),
        ("output", [t.name for t in config.output]),
    ):
        for name, count in Counter(names).items():
            if count > 1:
                last = len(names) - 1 - names[::-1].index(name)
                message = f"{kind} '{name}' is described {count} times"
                found.add(
                    f"{kind}-twice",
                    message,
                    f"{kind}[{last}]",
                    found=f"'{name}' again",
                    expected="once",
                    fix="remove this one",
                )
    if (
        config.HasField("dynamic_batching")
        and config.max_batch_size == 0
        and not config.dynamic_batching.preferred_batch_size
    ):
        message = "dynamic_batching has nothing to batch: max_batch_size is 0"
        expected = "max_batch_size of 2 or more, and dims without the batch dimension"
        found.add(
            "batching-without-batch",
            message,
            "dynamic_batching",
            found="max_batch_size 0",
            expected=expected,
        )
    check_instance_count(config, found)
    return found.problems


def _unreadable(error: OSError, repository: Path) -> Problem:
    return Problem(
        code="unreadable",
        message=f"it cannot be read: {error.strerror}",
        file=os.path.relpath(error.filename, repository) if error.filename else "",
        expected="files and directories that the server's user may read",
    )


def _misplaced_configs(directory: ModelDirectory, options: ConfigOptions) -> Iterator[Problem]:
    """Configurations that are not read because their place or their name is slightly wrong."""
    if config_path(directory.path, options).exists():
        return
    try:
        names = sorted(path.name for path in directory.path.iterdir())
    except OSError:
        return
    likely = [
        name
        for name in names
        if name.lower()
        in ("config.pbtxt", "config.pbtext", "config.pb.txt", "config.txt", "config.textproto")
    ]
    likely += [
        f"{version}/{CONFIG_FILE}"
        for version, path in directory.versions.items()
        if (path / CONFIG_FILE).exists()
    ]
    for name in likely:
        yield Problem(
            code="config-misplaced",
            message="this configuration is not read",
            file=f"{directory.name}/{name}",
            found=name,
            expected=f"{directory.name}/{CONFIG_FILE}",
            fix=f"move it to {directory.name}/{CONFIG_FILE}",
        )
