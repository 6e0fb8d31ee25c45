"""Predicts how long a request waits for its first token, from what was measured.

    wait = base + per_token * (tokens to compute, its own and those ahead) + per_request * running

The three numbers are fitted to the waits of all replicas of a model (recursive least squares that
forgets), and each replica has a factor for how much slower or faster it is than the fit.
Rule: there is nothing to tune. The numbers begin at those of a fast GPU and then follow what is
      measured.
"""

from __future__ import annotations

_FORGET = 0.998
_FACTOR_WEIGHT = 0.05
_MIN_OBSERVED = 20
"""Measurements before the replicas are told apart by their speed."""
_MIN_FACTOR, _MAX_FACTOR = 0.1, 100.0
_TOKEN_UNIT = 1000.0
_START = (0.010, 0.030, 0.0002)
"""Seconds: for a step, for 1,000 tokens, and for each running request."""
_FLOOR = (0.0, 0.0005, 0.00001)
"""More tokens and more requests are never better."""


class WaitModel:
    def __init__(self) -> None:
        self._theta = list(_START)
        # The beginning counts as much as a few measurements. An engine that is slower than a fast
        # GPU is mostly slower per token, so the first long waits count for the tokens.
        self._p = [[0.01, 0.0, 0.0], [0.0, 10.0, 0.0], [0.0, 0.0, 0.001]]
        self._num_observed = 0
        self._factors: dict[str, float] = {}
        self._mean_factor = 1.0

    def predict_s(self, name: str, num_tokens: float, num_running: float) -> float:
        return self._base_s(num_tokens, num_running) * self._factor(name)

    def _base_s(self, num_tokens: float, num_running: float) -> float:
        theta, floor = self._theta, _FLOOR
        return (
            max(theta[0], floor[0])
            + max(theta[1], floor[1]) * num_tokens / _TOKEN_UNIT
            + max(theta[2], floor[2]) * num_running
        )

    def _factor(self, name: str) -> float:
        """Compared with the mean of all replicas: the fit has what they have in common."""
        factor = self._factors.get(name)
        return 1.0 if factor is None else factor / self._mean_factor

    def observe(self, name: str, num_tokens: float, num_running: float, wait_s: float) -> None:
        """A request with so much ahead of it, when it was sent, has waited `wait_s`."""
        self._num_observed += 1
        base_s = self._base_s(num_tokens, num_running)
        # While the fit is far off, the difference is the engine's and not this replica's.
        if self._num_observed > _MIN_OBSERVED and base_s > 0:
            ratio = min(max(wait_s / base_s, _MIN_FACTOR), _MAX_FACTOR)
            factor = self._factors.get(name, self._mean_factor)
            self._factors[name] = factor + _FACTOR_WEIGHT * (ratio - factor)
            self._mean_factor = sum(self._factors.values()) / len(self._factors)
        self._fit((1.0, num_tokens / _TOKEN_UNIT, num_running), wait_s / self._factor(name))

    def forget(self, name: str) -> None:
        self._factors.pop(name, None)

    @property
    def tokens_per_s(self) -> float:
        """The prefill rate that was measured."""
        return _TOKEN_UNIT / max(self._theta[1], _FLOOR[1])

    def _fit(self, x: tuple[float, float, float], y: float) -> None:
        p, theta = self._p, self._theta
        px = [row[0] * x[0] + row[1] * x[1] + row[2] * x[2] for row in p]
        scale = _FORGET + x[0] * px[0] + x[1] * px[1] + x[2] * px[2]
        gain = [value / scale for value in px]
        error = y - (theta[0] * x[0] + theta[1] * x[1] + theta[2] * x[2])
        for i in range(3):
            theta[i] += gain[i] * error
            for j in range(3):
                p[i][j] = (p[i][j] - gain[i] * px[j]) / _FORGET
        # Without news the uncertainty would grow for ever.
        for i in range(3):
            if p[i][i] > 10.0:
                for j in range(3):
                    p[i][j] *= 0.5
                    p[j][i] *= 0.5
