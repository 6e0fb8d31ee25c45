"""Logger at every level and a metric of every kind; answers with the counter's and the gauge's
value."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.counter_family = pb_utils.MetricFamily(
            "observed_total", "Amounts added up", pb_utils.MetricFamily.COUNTER
        )
        self.gauge_family = pb_utils.MetricFamily(
            "observed_last", "Last amount", pb_utils.MetricFamily.GAUGE
        )
        self.histogram_family = pb_utils.MetricFamily(
            "observed_sizes", "Amounts by size", pb_utils.MetricFamily.HISTOGRAM
        )
        self.counter = self.counter_family.Metric(labels=labels)
        self.gauge = self.gauge_family.Metric(labels=labels)
        self.histogram = self.histogram_family.Metric(labels=labels, buckets=[1.0, 10.0, 100.0])

    def execute(self, requests):
        responses = []
        for request in requests:
            amount = float(pb_utils.get_input_tensor_by_name(request, "AMOUNT").as_numpy()[0])
            self.counter.increment(amount)
            self.gauge.set(amount)
            self.histogram.observe(amount)
            pb_utils.Logger.log(f"observed {amount}")
            pb_utils.Logger.log_info("observed at level info")
            pb_utils.Logger.log_warn("observed at level warning")
            pb_utils.Logger.log_error("observed at level error")
            pb_utils.Logger.log_verbose("observed at level verbose")
            values = np.array([self.counter.value(), self.gauge.value()])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("VALUES", values)]))
        return responses
