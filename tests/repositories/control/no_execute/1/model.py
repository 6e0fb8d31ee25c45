"""Without an execute there is no model."""


class TritonPythonModel:
    def initialize(self, args):
        self.args = args
