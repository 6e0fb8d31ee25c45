"""`pb_utils.ModelConfig`: the configuration that a model's `auto_complete_config` may complete.

In:  the configuration as JSON. Out: the configuration with the five fields that a model may change.
Rule: a model must not contradict config.pbtxt. The error messages are Triton's.
"""

from __future__ import annotations

import json
from typing import Any

COMPLETABLE = ("max_batch_size", "input", "output", "dynamic_batching", "model_transaction_policy")
"""As in Triton, changes to other fields are ignored."""


class ModelConfig:
    def __init__(self, model_config: str | bytes) -> None:
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        specified = self._model_config.get("max_batch_size", 0)
        if specified > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {specified}, but in auto-complete-config "
                f"function for model '{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but "
                    f"auto-complete-config function for model '{self._name}' tries to set "
                    "scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: dict[str, Any]) -> None:
        if not input.keys() <= {"name", "data_type", "dims", "optional"}:
            raise ValueError(
                f"{self._where('input', input)} contains property other than 'name', 'data_type', "
                "'dims' and 'optional'."
            )
        self._add("input", input)

    def add_output(self, output: dict[str, Any]) -> None:
        if not output.keys() <= {"name", "data_type", "dims"}:
            raise ValueError(
                f"{self._where('output', output)} contains property other than 'name', "
                "'data_type' and 'dims'."
            )
        self._add("output", output)

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        if not transaction_policy_dict.keys() <= {"decoupled"}:
            raise ValueError(
                "model transaction property in auto-complete-config function for model "
                f"'{self._name}' contains property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        if policy.setdefault("decoupled", decoupled) != decoupled:
            raise ValueError(
                "trying to change decoupled property in auto-complete-config for model "
                f"'{self._name}', which is already set to '{policy['decoupled']}'."
            )

    @property
    def _name(self) -> str:
        return str(self._model_config.get("name", ""))

    def _where(self, kind: str, tensor: dict[str, Any]) -> str:
        named = f"{kind} '{tensor['name']}'" if "name" in tensor else kind
        return f"{named} in auto-complete-config function for model '{self._name}'"

    def _add(self, kind: str, tensor: dict[str, Any]) -> None:
        for required in ("name", "data_type", "dims"):
            if required not in tensor:
                raise ValueError(f"{self._where(kind, tensor)} is missing '{required}' property.")
        tensors = self._model_config.setdefault(kind, [])
        for known in tensors:
            if known["name"] == tensor["name"]:
                self._check_against(kind, tensor, known)
                known.update(tensor)
                return
        tensors.append(tensor)

    def _check_against(self, kind: str, tensor: dict[str, Any], known: dict[str, Any]) -> None:
        name = tensor["name"]
        if known.get("data_type", "TYPE_INVALID") not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype "
                f"{known['data_type']} for {kind} '{name}', model provides {tensor['data_type']}"
            )
        for key in ("dims", "optional"):
            # Empty dims mean that none were specified. `optional` is compared only if both sides
            # have it.
            is_specified = (
                bool(known.get("dims")) if key == "dims" else key in known and key in tensor
            )
            if is_specified and known[key] != tensor[key]:
                raise ValueError(
                    f"model '{self._name}', tensor '{name}': the model expects {key} {tensor[key]} "
                    f"but the model configuration specifies {key} {known[key]}"
                )


def completed_config(original: bytes, completed: ModelConfig) -> bytes:
    config = json.loads(original)
    for field in COMPLETABLE:
        if field in completed.as_dict():
            config[field] = completed.as_dict()[field]
    return json.dumps(config).encode()
