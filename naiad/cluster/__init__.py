"""Replicas of models on many machines: Ray places, restarts and scales them; no request passes
through Ray."""
