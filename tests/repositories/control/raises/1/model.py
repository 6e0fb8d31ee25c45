"""Its initialize raises: the load fails and says why."""


class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("no weights here")

    def execute(self, requests):
        return []
