"""How many replicas a deployment should have: samples of its load -> a number.

Rule: pure, with the time passed in. The number goes up when the load was too high for
      `scale_up_after`, and down when fewer would have been enough for all of `scale_down_after`, so
      that a short pause does not end replicas that are needed again at once.
"""

from __future__ import annotations

import math

import msgspec

from naiad.cluster.spec import AutoscalingSpec, seconds


class LoadSample(msgspec.Struct, frozen=True):
    """The load of all replicas of a deployment together."""

    at_s: float
    num_requests: float
    """Requests that wait or run, those that the router keeps included."""
    first_token_ms: float = 0.0
    """The 90th percentile; 0 if there was none."""


class Autoscaler:
    def __init__(self, spec: AutoscalingSpec) -> None:
        self.spec = spec
        self._up_s = seconds(spec.scale_up_after, "scale_up_after")
        self._down_s = seconds(spec.scale_down_after, "scale_down_after")
        self._needs: list[tuple[float, int]] = []

    def decide(self, sample: LoadSample, num_replicas: int) -> int:
        """Returns the number of replicas that the deployment should have now."""
        spec = self.spec
        self._needs.append((sample.at_s, self._needed(sample, num_replicas)))
        while self._needs and self._needs[0][0] < sample.at_s - max(self._down_s, self._up_s):
            self._needs.pop(0)
        if num_replicas == 0 and sample.num_requests > 0:
            return max(1, spec.min_replicas)
        recent = [need for at_s, need in self._needs if at_s >= sample.at_s - self._up_s]
        if self._covers(sample.at_s, self._up_s) and min(recent) > num_replicas:
            return min(min(recent), spec.max_replicas)
        lasting = [need for at_s, need in self._needs if at_s >= sample.at_s - self._down_s]
        if self._covers(sample.at_s, self._down_s) and max(lasting) < num_replicas:
            return max(max(lasting), spec.min_replicas)
        return min(max(num_replicas, spec.min_replicas), spec.max_replicas)

    def _needed(self, sample: LoadSample, num_replicas: int) -> int:
        needed = math.ceil(sample.num_requests / self.spec.target_queue)
        target_ms = self.spec.target_first_token_ms
        if target_ms and sample.first_token_ms > target_ms and sample.num_requests > 0:
            # The time to the first token grows with the load of a replica, about in proportion.
            growth = min(sample.first_token_ms / target_ms, 2.0)
            needed = max(needed, math.ceil(num_replicas * growth))
        return min(max(needed, self.spec.min_replicas), self.spec.max_replicas)

    def _covers(self, now_s: float, span_s: float) -> bool:
        """True if there are samples from the whole span."""
        return self._needs[0][0] <= now_s - span_s + 1.0
