"""Dies at every request, and at every start once the file `broken` lies in the folder that
$TEST_STATE names."""

import os


class TritonPythonModel:
    def initialize(self, args):
        if os.path.exists(os.path.join(os.environ["TEST_STATE"], "broken")):
            os._exit(9)

    def execute(self, requests):
        os._exit(8)
