"""Raises in initialize."""


class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("no weights here")

    def execute(self, requests):
        return []
