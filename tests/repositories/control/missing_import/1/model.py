"""Imports what is not installed."""

import a_module_that_is_not_installed  # noqa: F401


class TritonPythonModel:
    def execute(self, requests):
        return []
