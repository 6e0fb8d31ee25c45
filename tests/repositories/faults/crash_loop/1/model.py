"""Dies at every request, and at every start once the file `broken` lies in the folder that
$NAIAD_TEST_STATE names."""

import os


class TritonPythonModel:
    def initialize(self, args):
        if os.path.exists(os.path.join(os.environ["NAIAD_TEST_STATE"], "broken")):
            os._exit(9)

    def execute(self, requests):
        os._exit(8)
