"""Models that record each `execute` as one JSON line in $RECORD_DIR/<instance>.jsonl.

Y is X + 1. The input GO names a FIFO: `execute` waits until a writer has opened and closed it; an
empty GO does not wait. The request parameter `fail` names the model that must return an error,
and `skip` names the model that must omit Y.
"""

import json
import os
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


def plain(array):
    return [
        value.decode() if isinstance(value, bytes) else value for value in array.ravel().tolist()
    ]


def describe(request):
    inputs = {}
    for tensor in request.inputs():
        array = tensor.as_numpy()
        inputs[tensor.name()] = [str(array.dtype), list(array.shape), plain(array)]
    return {
        "id": request.request_id(),
        "sequence": request.correlation_id(),
        "flags": request.flags(),
        "timeout": request.timeout(),
        "parameters": json.loads(request.parameters()),
        "wanted": sorted(request.requested_output_names()),
        "inputs": dict(sorted(inputs.items())),
    }


def first(request, name, default=None):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().ravel()[0]


def wait_at(path):
    if path:
        with open(path, "rb") as fifo:
            fifo.read()


class Recorder:
    def initialize(self, args):
        self.name = args["model_name"]
        self.instance = args["model_instance_name"]
        self.config = json.loads(args["model_config"])
        folder = os.environ.get("RECORD_DIR")
        self.path = None if folder is None else os.path.join(folder, self.instance + ".jsonl")

    def record(self, requests):
        if self.path is not None:
            line = json.dumps([describe(request) for request in requests]) + "\n"
            with open(self.path, "a") as file:
                file.write(line)


class Plain(Recorder):
    def execute(self, requests):
        self.record(requests)
        return [self.respond(request) for request in requests]

    def respond(self, request):
        wait_at(first(request, "GO", b""))
        parameters = json.loads(request.parameters())
        if parameters.get("fail") == self.name:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("asked to fail"))
        return pb_utils.InferenceResponse(
            [] if parameters.get("skip") == self.name else self.outputs(request)
        )

    def outputs(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        extra = pb_utils.get_input_tensor_by_name(request, "EXTRA")
        outputs = [pb_utils.Tensor("Y", x + (1 if extra is None else extra.as_numpy()))]
        if "Z" in request.requested_output_names():
            outputs.append(pb_utils.Tensor("Z", x * 10))
        return outputs


class Streaming(Recorder):
    """A decoupled model that sends X responses, 0 to X-1, from a thread that first waits at GO."""

    def execute(self, requests):
        self.record(requests)
        for request in requests:
            if first(request, "READY", True):
                threading.Thread(target=self.stream, args=(request,)).start()

    def stream(self, request):
        sender = request.get_response_sender()
        count = int(first(request, "X"))
        wait_at(first(request, "GO", b""))
        for number in range(count):
            sender.send(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("Y", np.full((1, 1), number, np.int32))]
                )
            )
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class Iterative(Recorder):
    """Reschedules its request until it has seen it X times. If decoupled, it responds each time
    with the remaining number."""

    def initialize(self, args):
        super().initialize(args)
        self.left = {}
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(self.config)

    def execute(self, requests):
        self.record(requests)
        responses = [self.step(request) for request in requests]
        return None if self.is_decoupled else responses

    def step(self, request):
        key = int(first(request, "CORRID"))
        if first(request, "START"):
            self.left[key] = int(first(request, "X"))
        self.left[key] -= 1
        response = pb_utils.InferenceResponse(
            [pb_utils.Tensor("Y", np.full((1, 1), self.left[key], np.int32))]
        )
        is_last = self.left[key] <= 0
        if not is_last:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        if self.is_decoupled:
            request.get_response_sender().send(response, flags=int(is_last))
        return response if is_last and not self.is_decoupled else None


class Probe(Recorder):
    def execute(self, requests):
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])
            request.get_response_sender().send(
                response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            )


class Many(Recorder):
    """A decoupled model that sends X responses within `execute`. The parameter `fail_at` makes one
    of them an error; `together` sends the final flag with the last one."""

    def execute(self, requests):
        self.record(requests)
        for request in requests:
            self.respond(request, json.loads(request.parameters()))

    def respond(self, request, parameters):
        sender = request.get_response_sender()
        count = int(first(request, "X"))
        is_together = bool(parameters.get("together")) and count > 0
        for number in range(count):
            response = pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", np.full((1, 1), number, np.int32))]
            )
            if parameters.get("fail_at") == number:
                response = pb_utils.InferenceResponse(
                    error=pb_utils.TritonError("failed on the way")
                )
            sender.send(response, flags=int(is_together and number == count - 1))
        if not is_together:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class Stateful(Recorder):
    """Y is the X of the previous request. The outputs are made from the state that the server
    passes in."""

    def execute(self, requests):
        self.record(requests)
        return [pb_utils.InferenceResponse(self.outputs(request)) for request in requests]

    def outputs(self, request):
        def get(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

        x = get("X")
        text = get("TEXT_IN")[0, 0] + b"%d." % x[0, 0]
        return [
            pb_utils.Tensor("Y", get("LAST_IN")),
            pb_utils.Tensor("LAST_OUT", x),
            pb_utils.Tensor("SUM_OUT", get("SUM_IN") + x),
            pb_utils.Tensor("ALL_OUT", np.concatenate([get("ALL_IN"), x], axis=1)),
            pb_utils.Tensor("TEXT_OUT", np.array([[text]], np.object_)),
        ]


class Endless(Recorder):
    """A decoupled model that counts up in a thread until its request is cancelled, and then records
    the cancellation as a batch."""

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.stream, args=(request,)).start()

    def stream(self, request):
        sender = request.get_response_sender()
        number = 0
        while not sender.is_cancelled():
            sender.send(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("Y", np.full((1, 1), number, np.int32))]
                )
            )
            number += 1
        self.record([request])
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class Counting(Recorder):
    """Y is the number of requests that this instance has executed; Z is X."""

    num_executed = 0

    def execute(self, requests):
        self.record(requests)
        return [self.respond(request) for request in requests]

    def respond(self, request):
        if "fail" in json.loads(request.parameters()):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("asked to fail"))
        self.num_executed += 1
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        number = np.full((len(x), 1), self.num_executed, np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", number), pb_utils.Tensor("Z", x)])


class Ordered(Plain):
    """Appends its name to $RECORD_DIR/order when `execute` begins, which records the order of
    executions."""

    def execute(self, requests):
        folder = os.environ.get("RECORD_DIR")
        if folder is not None:
            with open(os.path.join(folder, "order"), "a") as file:
                file.write(self.name + "\n")
        return super().execute(requests)
