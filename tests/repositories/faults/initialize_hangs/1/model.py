"""Never returns from initialize. It tells its process id in the file that $NAIAD_TEST_STATE holds, if there is one."""

import os
import threading


class TritonPythonModel:
    def initialize(self, args):
        folder = os.environ.get("NAIAD_TEST_STATE")
        if folder:
            with open(os.path.join(folder, "initializing"), "w") as file:
                file.write(str(os.getpid()))
        print("initialize has begun", flush=True)
        threading.Event().wait()

    def execute(self, requests):
        return []
