import re
import shutil
import subprocess
from collections.abc import Callable

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from naiad import __version__
from naiad.core.statistics import BatchTimes, Histogram, ModelStatistics
from naiad.metrics.custom import CustomMetrics
from naiad.metrics.model_metrics import ModelSeries
from naiad.metrics.operation import MetricOperation
from naiad.metrics.page import MetricsPage
from naiad.metrics.summary import SummaryStatistics
from naiad.settings import Settings
from naiad.settings.resolve import resolve

# HELP and TYPE of Triton 2.51's page, in its order, without GPUs and with summaries. Two rows are
# younger than that: the load duration and the histogram of first responses.
TRITON_FAMILIES = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
# HELP nv_inference_request_failure Number of failed inference requests, all batch sizes
# TYPE nv_inference_request_failure counter
# HELP nv_inference_count Number of inferences performed (does not include cached requests)
# TYPE nv_inference_count counter
# HELP nv_inference_exec_count Number of model executions performed (does not include cached requests)
# TYPE nv_inference_exec_count counter
# HELP nv_inference_request_duration_us Cumulative inference request duration in microseconds (includes cached requests)
# TYPE nv_inference_request_duration_us counter
# HELP nv_inference_queue_duration_us Cumulative inference queuing duration in microseconds (includes cached requests)
# TYPE nv_inference_queue_duration_us counter
# HELP nv_inference_compute_input_duration_us Cumulative compute input duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_input_duration_us counter
# HELP nv_inference_compute_infer_duration_us Cumulative compute inference duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_infer_duration_us counter
# HELP nv_inference_compute_output_duration_us Cumulative inference compute output duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_output_duration_us counter
# HELP nv_cache_num_hits_per_model Number of cache hits per model
# TYPE nv_cache_num_hits_per_model counter
# HELP nv_cache_hit_duration_per_model Total cache hit duration per model, in microseconds
# TYPE nv_cache_hit_duration_per_model counter
# HELP nv_cache_num_misses_per_model Number of cache misses per model
# TYPE nv_cache_num_misses_per_model counter
# HELP nv_cache_miss_duration_per_model Total cache miss (insert+lookup) duration per model, in microseconds
# TYPE nv_cache_miss_duration_per_model counter
# HELP nv_inference_pending_request_count Instantaneous number of pending requests awaiting execution per-model.
# TYPE nv_inference_pending_request_count gauge
# HELP nv_model_load_duration_secs Model load time in seconds
# TYPE nv_model_load_duration_secs gauge
# HELP nv_pinned_memory_pool_total_bytes Pinned memory pool total memory size, in bytes
# TYPE nv_pinned_memory_pool_total_bytes gauge
# HELP nv_pinned_memory_pool_used_bytes Pinned memory pool used memory size, in bytes
# TYPE nv_pinned_memory_pool_used_bytes gauge
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
# HELP nv_cpu_memory_total_bytes CPU total memory (RAM), in bytes
# TYPE nv_cpu_memory_total_bytes gauge
# HELP nv_cpu_memory_used_bytes CPU used memory (RAM), in bytes
# TYPE nv_cpu_memory_used_bytes gauge
# HELP nv_inference_first_response_histogram_ms Duration from request to first response in milliseconds
# TYPE nv_inference_first_response_histogram_ms histogram
# HELP nv_inference_request_summary_us Summary of inference request duration in microseconds (includes cached requests)
# TYPE nv_inference_request_summary_us summary
# HELP nv_inference_queue_summary_us Summary of inference queuing duration in microseconds (includes cached requests)
# TYPE nv_inference_queue_summary_us summary
# HELP nv_inference_compute_input_summary_us Cumulative compute input duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_input_summary_us summary
# HELP nv_inference_compute_infer_summary_us Cumulative compute inference duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_infer_summary_us summary
# HELP nv_inference_compute_output_summary_us Cumulative inference compute output duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_output_summary_us summary
""".splitlines()
OWN_FAMILIES = [
    ("naiad_worker_restarts_total", "counter"),
    ("naiad_log_messages_dropped_total", "counter"),
    ("naiad_request_memory_refused_total", "counter"),
    ("naiad_workers_ready", "gauge"),
    ("naiad_oldest_execution_seconds", "gauge"),
    ("naiad_connections", "gauge"),
    ("naiad_info", "gauge"),
    ("naiad_request_memory_limit_bytes", "gauge"),
    ("naiad_request_memory_used_bytes", "gauge"),
    ("naiad_request_duration_seconds", "histogram"),
    ("naiad_queue_duration_seconds", "histogram"),
    ("naiad_compute_input_duration_seconds", "histogram"),
    ("naiad_compute_infer_duration_seconds", "histogram"),
    ("naiad_compute_output_duration_seconds", "histogram"),
    ("naiad_batch_size", "histogram"),
]
TIMES = BatchTimes(5_000_000, 6_000_000, 8_000_000, 9_000_000)


def busy(
    name: str = "m", kind: Callable[[str, int], ModelStatistics] = ModelStatistics
) -> ModelStatistics:
    """Two requests of 2 items in one batch, and two that failed."""
    statistics = kind(name, 1)
    statistics.record_execution(4, TIMES)
    for _ in range(2):
        statistics.record_compute(1, TIMES)
        statistics.record_success(
            2, 1_000_000, 2_000_000, TIMES.compute_start_ns, TIMES.compute_end_ns
        )
        statistics.record_first_response(1_000_000, 9_000_000)
    statistics.record_failure(0, 1, "CANCELED")
    statistics.record_failure(0, 1, "BACKEND")
    statistics.pending_request_count = 3
    statistics.load_duration_s = 1.5
    statistics.worker_restarts = 2
    return statistics


def render(
    *models: ModelSeries, settings: Settings | None = None, custom: CustomMetrics | None = None
) -> str:
    page = MetricsPage(
        settings or quiet(),
        lambda: models,
        custom or CustomMetrics(),
        lambda: {"http": 3, "grpc": 1},
        faults=lambda: {"http": {"request_timeout": 2}, "grpc": {}},
    )
    return page.render().decode()


def quiet(*entries: str) -> Settings:
    return resolve({"metrics-config": list(entries)}, {}).settings


def lines(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(rf"{name}[{{ ]", line)]


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_names_help_and_order_are_tritons() -> None:
    settings = quiet("histogram_latencies=true", "summary_latencies=true")
    model = ModelSeries(busy(kind=SummaryStatistics), has_cache=True)
    page = MetricsPage(settings, lambda: [model], CustomMetrics(), lambda: {"http": 3})
    page.start()
    try:
        assert page.sampler.has_read.wait(60)
        comments = [line for line in page.render().decode().splitlines() if line.startswith("#")]
    finally:
        page.stop()
    gpu = re.compile(r"# \w+ (nv_gpu_|nv_energy_)")
    theirs = [line for line in comments if " nv_" in line and not gpu.match(line)]
    assert theirs == TRITON_FAMILIES
    assert [
        tuple(line.split()[2:]) for line in comments if line.startswith("# TYPE naiad_")
    ] == OWN_FAMILIES


def test_counters_and_gauges_of_a_model() -> None:
    text = render(ModelSeries(busy(), num_workers_ready=2, oldest_execution_s=0.5))
    labels = '{model="m",version="1"}'
    expected = {
        "nv_inference_request_success": 2,
        "nv_inference_count": 4,
        "nv_inference_exec_count": 1,
        "nv_inference_request_duration_us": 16000,
        "nv_inference_queue_duration_us": 6000,
        "nv_inference_compute_input_duration_us": 2000,
        "nv_inference_compute_infer_duration_us": 4000,
        "nv_inference_compute_output_duration_us": 2000,
        "nv_inference_pending_request_count": 3,
        "nv_model_load_duration_secs": 1.5,
        "naiad_worker_restarts_total": 2,
        "naiad_workers_ready": 2,
        "naiad_oldest_execution_seconds": 0.5,
    }
    for name, value in expected.items():
        assert lines(text, name) == [f"{name}{labels} {value}"]
    assert "nv_cache" not in text
    assert "summary" not in text
    assert "first_response" not in text


def test_shows_all_failure_reasons_from_the_start() -> None:
    text = render(ModelSeries(ModelStatistics("m", 1)))
    reasons = {
        f'nv_inference_request_failure{{model="m",reason="{reason}",version="1"}} 0'
        for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER")
    }
    assert set(lines(text, "nv_inference_request_failure")) == reasons
    text = render(ModelSeries(busy()))
    assert 'nv_inference_request_failure{model="m",reason="CANCELED",version="1"} 1' in text
    assert 'nv_inference_request_failure{model="m",reason="OTHER",version="1"} 0' in text


def test_tags_become_labels_as_in_triton() -> None:
    text = render(ModelSeries(busy("custom"), {"team": "a b", "quoted": 'x\\ y\n"z'}))
    # A line of Triton's page.
    labels = r'{_quoted="x\\ y\n\"z",_team="a b",model="custom",version="1"}'
    assert f"nv_inference_request_success{labels} 2" in text


def test_omits_a_tag_that_cannot_be_a_label() -> None:
    text = render(ModelSeries(busy(), {'a"q': "1", "x y": "2", "": "3"}))
    assert lines(text, "nv_inference_count") == [
        'nv_inference_count{_="3",model="m",version="1"} 4'
    ]
    families(text)


def test_the_gpu_of_a_model_is_a_label() -> None:
    text = render(ModelSeries(busy(), gpu_uuid="GPU-1"))
    assert lines(text, "nv_inference_count") == [
        'nv_inference_count{gpu_uuid="GPU-1",model="m",version="1"} 4'
    ]


def test_naiad_histograms_are_in_seconds() -> None:
    family = families(render(ModelSeries(busy())))["naiad_queue_duration_seconds"]
    samples = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert samples["naiad_queue_duration_seconds_sum", None] == pytest.approx(0.006)
    assert samples["naiad_queue_duration_seconds_count", None] == 2
    assert samples["naiad_queue_duration_seconds_bucket", "0.0025"] == 0
    assert samples["naiad_queue_duration_seconds_bucket", "0.005"] == 2
    assert samples["naiad_queue_duration_seconds_bucket", "+Inf"] == 2


def test_batch_sizes() -> None:
    text = render(ModelSeries(busy()))
    assert 'naiad_batch_size_bucket{model="m",version="1",le="2"} 0' in text
    assert 'naiad_batch_size_bucket{model="m",version="1",le="4"} 1' in text
    assert 'naiad_batch_size_sum{model="m",version="1"} 4' in text


def test_latency_counters_can_be_off() -> None:
    text = render(ModelSeries(busy(), has_cache=True), settings=quiet("counter_latencies=false"))
    assert "_duration_us" not in text
    assert "nv_cache_hit_duration_per_model" not in text
    assert "nv_cache_num_hits_per_model" in text
    assert "nv_inference_count" in text


def test_first_response_histogram() -> None:
    statistics = busy()
    statistics.first_response_histogram_ms = Histogram((-1.0, 0.0, 2.5))
    statistics.record_first_response(0, 2_000_000)
    text = render(ModelSeries(statistics), settings=quiet("histogram_latencies=true"))
    name, labels = "nv_inference_first_response_histogram_ms", 'model="m",version="1"'
    assert lines(text, f"{name}_bucket") == [
        f'{name}_bucket{{{labels},le="-1"}} 0',
        f'{name}_bucket{{{labels},le="0"}} 0',
        f'{name}_bucket{{{labels},le="2.5"}} 1',
        f'{name}_bucket{{{labels},le="+Inf"}} 1',
    ]


def test_summaries() -> None:
    settings = quiet("summary_latencies=true", "summary_quantiles=0.5:0.05,0.25:0.1")
    text = render(ModelSeries(busy(kind=SummaryStatistics)), settings=settings)
    name, labels = "nv_inference_request_summary_us", 'model="m",version="1"'
    assert f"{name}_count{{{labels}}} 2\n{name}_sum{{{labels}}} 16000\n" in text
    assert [re.search(r'quantile="([^"]*)"', line)[1] for line in lines(text, name)] == [  # type: ignore[index]
        "0.5",
        "0.25",
    ]


def test_omits_unloaded_models() -> None:
    models = [ModelSeries(busy("a")), ModelSeries(busy("b"))]
    page = MetricsPage(quiet(), lambda: models, CustomMetrics())
    assert b'model="a"' in page.render()
    del models[0]
    assert b'model="a"' not in page.render()
    assert b'model="b"' in page.render()


def test_metrics_of_the_server() -> None:
    text = render()
    assert 'naiad_connections{protocol="http"} 3' in text
    assert 'naiad_connections{protocol="grpc"} 1' in text
    assert 'naiad_client_faults_total{cause="request_timeout",protocol="http"} 2' in text
    assert f'naiad_info{{version="{__version__}"}} 1' in text
    assert "nv_pinned_memory_pool_total_bytes 268435456" in text
    assert "nv_inference" not in text


def test_metrics_of_models_are_listed_with_their_kind() -> None:
    custom = CustomMetrics()
    family = custom.create_family("a", "requests_seen", 'a "counter"\nof \\ mine', "counter")
    custom.increment("a", custom.create_metric("a", family, {"l": "v"}, None), 2)
    text = render(ModelSeries(busy()), custom=custom)
    assert (
        '# HELP requests_seen a "counter"\\nof \\\\ mine\n# TYPE requests_seen counter\n'
        'requests_seen{l="v"} 2\n' in text
    )
    assert (
        text.index("nv_inference_count")
        < text.index("requests_seen")
        < text.index("nv_inference_pending_request_count")
    )


def test_a_metric_of_a_model_may_join_a_family_of_the_server() -> None:
    custom = CustomMetrics()
    page = MetricsPage(quiet(), lambda: [ModelSeries(busy())], custom)
    family = int(
        custom.apply(
            "a", MetricOperation("create_family", name="nv_inference_count", metric_kind="counter")
        )
    )
    custom.apply("a", MetricOperation("create_metric", family, labels={"a": "b"}))
    text = page.render().decode()
    assert text.count("# TYPE nv_inference_count counter") == 1
    assert lines(text, "nv_inference_count") == [
        'nv_inference_count{model="m",version="1"} 4',
        'nv_inference_count{a="b"} 0',
    ]


@pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed (Debian's package prometheus has it)",
)
def test_promtool_accepts_the_page() -> None:
    settings = quiet("histogram_latencies=true", "summary_latencies=true")
    text = render(
        ModelSeries(busy(kind=SummaryStatistics), {"t": 'x"\n'}, has_cache=True), settings=settings
    )
    result = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text,
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert result.returncode in (0, 3), (
        "1 would be a page that does not parse, 3 is a matter of taste about names, here Triton's"
    )
    assert [line for line in result.stderr.splitlines() if not line.startswith("nv_")] == []


def test_every_family_occurs_once_and_can_be_parsed() -> None:
    settings = quiet("histogram_latencies=true", "summary_latencies=true")
    models = [
        ModelSeries(busy(f"m{number}", SummaryStatistics), {"t": "x"}, has_cache=True)
        for number in range(3)
    ]
    text = render(*models, settings=settings)
    names = re.findall(r"# TYPE (\S+)", text)
    assert len(names) == len(set(names))
    seen = [
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in families(text).values()
        for sample in family.samples
    ]
    assert len(seen) == len(set(seen))
    assert len(seen) == sum(not line.startswith("#") for line in text.splitlines())
