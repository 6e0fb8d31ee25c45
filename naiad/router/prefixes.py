"""The policies `prefix` of a router, one per model, and the events that feed their indexes.

In:  KV events by replica. Out: a policy per model.
Rule: the events of a replica belong to the model that their topic names (`kv@HOST@MODEL`), or else
      to every model with this policy that the replica serves.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from naiad.keys.secret import read_credential
from naiad.router.config import ModelSpec
from naiad.router.kv_subscriber import KvEvent
from naiad.router.policies.prefix import Prefix
from naiad.router.prefix_index import PrefixIndex
from naiad.router.prompts import TokenReader, read_pieces

if TYPE_CHECKING:
    from naiad.router.policy import RoutedRequest
    from naiad.router.replica import Replica


class Prefixes:
    def __init__(self) -> None:
        self.policies: dict[str, Prefix] = {}
        self._specs: dict[str, ModelSpec] = {}
        self._readers: dict[str, TokenReader] = {}
        self._has_tokens: set[str] = set()
        """Models whose prompts are tokenized: the events of others cannot be compared."""
        self._has_owners = False
        """An engine keeps the prompts of keys apart."""

    def make(self, model: str, spec: ModelSpec) -> Prefix:
        """Raises NaiadError. An empty model is a trial. A model whose spec is what it was keeps its
        policy, and so what it has learned."""
        if model and self._specs.get(model) == spec:
            return self.policies[model]
        reader = None
        if spec.tokenizer:
            reader = self._readers.get(spec.tokenizer)
            if reader is None:
                reader = TokenReader(Path(spec.tokenizer), self._owner_of)
                self._readers[spec.tokenizer] = reader
        policy = Prefix(
            PrefixIndex(spec.block_size), read_pieces if reader is None else reader.read
        )
        if model:
            if reader is not None:
                self._has_tokens.add(model)
            self.policies[model] = policy
            self._specs[model] = spec
        return policy

    def on_events(self, replica: Replica, topic: str, events: list[KvEvent]) -> None:
        named = topic.rpartition("@")[2] if "@" in topic else ""
        for model, policy in self.policies.items():
            if model not in self._has_tokens or model != (named or model):
                continue
            if model in replica.models or named:
                self._apply(policy.index, replica.name, events)

    def _apply(self, index: PrefixIndex, name: str, events: list[KvEvent]) -> None:
        for event in events:
            if event.kind == "BlockStored":
                self._has_owners = self._has_owners or "\x1f" in event.salt
                index.store(
                    name,
                    event.block_hashes,
                    event.parent,
                    event.tokens,
                    event.block_size,
                    event.salt,
                )
            elif event.kind == "BlockRemoved":
                index.remove(name, event.block_hashes)
            else:
                index.clear(name)

    def forget(self, replica: Replica) -> None:
        for policy in self.policies.values():
            policy.index.forget(replica.name)
            policy.waits.forget(replica.name)

    def _owner_of(self, request: RoutedRequest) -> str:
        """The id of the key that a request brings, where engines keep keys apart."""
        if not self._has_owners:
            return ""
        value = request.header("authorization")
        value = value[7:].strip() if value[:7].lower() == "bearer " else request.header("x-api-key")
        return read_credential(value.encode()).key_id if value else ""
