"""grpcio and tritonclient as clients of the gRPC endpoint, with a fake core that computes in the
same process."""

from __future__ import annotations

import asyncio
import queue
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio

from naiad.pb.grpc_service_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from naiad.transport.grpc.options import GrpcOptions
from tests.wire.grpc_host import Host, hosted

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosted() as host:
        yield host


@pytest.fixture
def channel(host: Host) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(host.address, options=UNLIMITED) as channel:
        yield channel


def one(model: str, data: bytes = b"\0\0\0\0", request_id: str = "") -> ModelInferRequest:
    message = ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[data])
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[len(data) // 4])
    return message


def infer_method(channel: grpc.Channel) -> Any:
    return channel.unary_unary(
        INFER, ModelInferRequest.SerializeToString, ModelInferResponse.FromString
    )


def stream_method(channel: grpc.Channel) -> Any:
    return channel.stream_stream(
        STREAM, ModelInferRequest.SerializeToString, ModelStreamInferResponse.FromString
    )


class TestGrpcio:
    @pytest.mark.parametrize("size", [0, 4, 16_000, 70_000, 5_000_000])
    def test_messages_of_all_sizes(self, channel: grpc.Channel, size: int) -> None:
        data = np.random.default_rng(size).bytes(size // 4 * 4)
        response = infer_method(channel)(one("identity", data), timeout=30)
        assert response.raw_output_contents[0] == data

    def test_a_hundred_megabytes_in_and_out(self, channel: grpc.Channel) -> None:
        data = np.arange(25_000_000, dtype=np.float32)
        response = infer_method(channel)(one("identity", data.tobytes()), timeout=120)
        assert np.array_equal(np.frombuffer(response.raw_output_contents[0], np.float32), data)

    def test_many_concurrent_requests(self, channel: grpc.Channel) -> None:
        infer = infer_method(channel)
        futures = [
            infer.future(
                one("identity", np.full(i % 3000 + 1, i, np.float32).tobytes(), str(i)), timeout=60
            )
            for i in range(2000)
        ]
        for i, future in enumerate(futures):
            response = future.result()
            assert response.id == str(i)
            assert np.frombuffer(response.raw_output_contents[0], np.float32)[0] == i

    @pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
    @pytest.mark.parametrize("size", [100, 2_000_000])
    def test_compressed_requests(
        self, channel: grpc.Channel, algorithm: grpc.Compression, size: int
    ) -> None:
        request = one("identity", bytes(size))
        response = infer_method(channel)(request, compression=algorithm, timeout=30)
        assert response.raw_output_contents[0] == bytes(size)

    def test_compressed_responses(self) -> None:
        with (
            hosted(GrpcOptions(infer_response_compression_level="medium")) as host,
            grpc.insecure_channel(host.address) as channel,
        ):
            for size in (4, 1000, 2_000_000):
                response = infer_method(channel)(one("identity", bytes(size)), timeout=30)
                assert response.raw_output_contents[0] == bytes(size)
            responses = list(
                stream_method(channel)(
                    iter([one("identity", bytes(n * 1000), str(n)) for n in (1, 900, 2)]),
                    timeout=30,
                )
            )
            assert [r.infer_response.id for r in responses] == ["1", "900", "2"]

    def test_an_error_has_a_code_and_a_message(self, channel: grpc.Channel) -> None:
        with pytest.raises(grpc.RpcError) as caught:
            infer_method(channel)(one("nöthing %"), timeout=30)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert caught.value.details() == "Request for unknown model: 'nöthing %' is not found"

    def test_unknown_method(self, channel: grpc.Channel) -> None:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/x.Y/Z")(b"", timeout=30)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    def test_a_deadline_cancels_the_work(self, host: Host, channel: grpc.Channel) -> None:
        """Retries with a longer deadline if the time was up before the request arrived."""
        for timeout_s in (0.05, 0.5, 5, 50):
            with pytest.raises(grpc.RpcError) as caught:
                infer_method(channel)(one("held", request_id="deadline"), timeout=timeout_s)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if host.ask(lambda: any(held.request.id == "deadline" for held in host.core.held)):
                break
        host.wait_until(
            lambda: any(
                held.request.id == "deadline" and held.is_cancelled for held in host.core.held
            )
        )

    def test_cancelling_a_call_cancels_the_work(self, host: Host, channel: grpc.Channel) -> None:
        future = infer_method(channel).future(one("held", request_id="cancel"))
        host.wait_until(lambda: any(held.request.id == "cancel" for held in host.core.held))
        future.cancel()
        host.wait_until(
            lambda: any(
                held.request.id == "cancel" and held.is_cancelled for held in host.core.held
            )
        )

    def test_closing_the_channel_cancels_the_work(self, host: Host) -> None:
        with grpc.insecure_channel(host.address) as channel:
            call = infer_method(channel).future(one("held", request_id="gone"))
            host.wait_until(lambda: any(held.request.id == "gone" for held in host.core.held))
        host.wait_until(
            lambda: any(held.request.id == "gone" and held.is_cancelled for held in host.core.held)
        )
        assert call.code() is grpc.StatusCode.CANCELLED

    def test_a_stream_of_many_requests(self, channel: grpc.Channel) -> None:
        """The requests exceed the flow control window and the number of requests in flight."""
        sizes = [(i * 37) % 5000 + 1 for i in range(5000)]
        requests = (one("identity", bytes(4 * size), str(i)) for i, size in enumerate(sizes))
        for i, response in enumerate(stream_method(channel)(requests, timeout=120)):
            assert response.infer_response.id == str(i)
            assert len(response.infer_response.raw_output_contents[0]) == 4 * sizes[i]
        assert i == 4999

    def test_responses_wait_for_a_slow_reader(self, channel: grpc.Channel) -> None:
        """Responses exceed the client's window while it does not read."""
        call = stream_method(channel)(
            iter([one("identity", bytes(200_000), str(i)) for i in range(20)]), timeout=60
        )
        gate = threading.Event()
        threading.Timer(0.05, gate.set).start()
        gate.wait()
        assert [response.infer_response.id for response in call] == [str(i) for i in range(20)]

    def test_text_binary_and_repeated_metadata(self, channel: grpc.Channel) -> None:
        metadata = [
            ("x-text", "some words"),
            ("x-data-bin", bytes(range(256))),
            ("x-text", "again"),
        ]
        response = infer_method(channel)(one("identity"), metadata=metadata, timeout=30)
        assert response.model_name == "identity"

    def test_large_metadata(self, channel: grpc.Channel) -> None:
        metadata = [("x-token", "t" * 7000)]
        response = infer_method(channel)(one("identity"), metadata=metadata, timeout=30)
        assert response.model_name == "identity"

    def test_metadata_that_differs_in_each_request(self, channel: grpc.Channel) -> None:
        infer = infer_method(channel)
        for i in range(500):
            metadata = [("traceparent", f"00-{i:032x}-{i:016x}-01"), ("x-request", str(i))]
            response = infer(one("identity", request_id=str(i)), metadata=metadata, timeout=30)
            assert response.id == str(i)


class TestGrpcioAsyncio:
    async def test_unary_and_stream(self, host: Host) -> None:
        async with grpc.aio.insecure_channel(host.address, options=UNLIMITED) as channel:
            infer = infer_method(channel)
            responses = await asyncio.gather(
                *(infer(one("identity", bytes(4 * i), str(i)), timeout=60) for i in range(300))
            )
            assert [response.id for response in responses] == [str(i) for i in range(300)]
            call = stream_method(channel)(timeout=60)
            for i in range(50):
                await call.write(one("identity", request_id=str(i)))
                response = await call.read()
                assert response.infer_response.id == str(i)
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK

    async def test_cancelling_a_task_cancels_the_work(self, host: Host) -> None:
        async with grpc.aio.insecure_channel(host.address) as channel:
            task = asyncio.ensure_future(infer_method(channel)(one("held", request_id="task")))
            while not any(held.request.id == "task" for held in host.core.held):
                await asyncio.sleep(0.001)
            task.cancel()
            while not any(
                held.request.id == "task" and held.is_cancelled for held in host.core.held
            ):
                await asyncio.sleep(0.001)


class TestShutdown:
    def test_running_requests_finish_before_the_connection_is_closed(self) -> None:
        host = Host()
        host.start()
        with grpc.insecure_channel(host.address) as channel:
            future = infer_method(channel).future(one("held", request_id="last"), timeout=60)
            host.wait_until(lambda: bool(host.core.held))
            host.begin_stop(30.0)
            host.wait_until(lambda: host.frontend._endpoint.is_stopping)
            host.ask(host.core.held[0].answer)
            assert future.result().id == "last"
            host.join()
            with pytest.raises(grpc.RpcError) as caught:
                infer_method(channel)(one("identity"), timeout=10)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    def test_requests_that_do_not_finish_in_time_fail(self) -> None:
        host = Host()
        host.start()
        with grpc.insecure_channel(host.address) as channel:
            future = infer_method(channel).future(one("held"), timeout=60)
            host.wait_until(lambda: bool(host.core.held))
            host.begin_stop(0.05)
            assert isinstance(future.exception(), grpc.RpcError)
            assert future.code() is grpc.StatusCode.UNAVAILABLE
            host.join()
        assert host.core.held[0].is_cancelled


class TestTls:
    @pytest.fixture
    def certificate(self, tmp_path: Path) -> tuple[Path, Path]:
        key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
        command = ["openssl", "req", "-x509", "-days", "2", "-nodes"]
        command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        try:
            subprocess.run(
                [*command, *names, "-keyout", str(key), "-out", str(certificate)],
                check=True,
                capture_output=True,
            )
        except FileNotFoundError:
            pytest.skip("openssl is needed to make a certificate")
        return certificate, key

    def test_grpc_over_tls(self, certificate: tuple[Path, Path]) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        context.set_alpn_protocols(["h2"])
        credentials = grpc.ssl_channel_credentials(certificate[0].read_bytes())
        with (
            hosted(tls=context) as host,
            grpc.secure_channel(
                f"localhost:{host.port}", credentials, options=UNLIMITED
            ) as channel,
        ):
            for size in (4, 100_000, 20_000_000):
                data = np.random.default_rng(size).bytes(size)
                response = infer_method(channel)(one("identity", data), timeout=60)
                assert response.raw_output_contents[0] == data

    def test_closes_a_connection_without_alpn_h2(self, certificate: tuple[Path, Path]) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        context.set_alpn_protocols(["h2"])
        plain = ssl.create_default_context(cafile=str(certificate[0]))
        with hosted(tls=context) as host:
            with (
                socket.create_connection(("localhost", host.port)) as raw,
                plain.wrap_socket(raw, server_hostname="localhost") as secured,
            ):
                assert secured.recv(100) == b""
            assert host.frontend.counters.failures["alpn"] == 1


class TestTritonclient:
    def test_sync(self, host: Host) -> None:
        with triton.InferenceServerClient(host.address) as client:
            assert client.is_server_live()
            assert client.is_model_ready("add_sub")
            assert client.get_model_metadata("add_sub").platform == "python"
            assert client.get_model_config("add_sub").config.max_batch_size == 64
            assert client.get_inference_statistics("add_sub").model_stats[0].name == "add_sub"
            inputs = [triton.InferInput(f"INPUT{i}", [1, 16], "FP32") for i in range(2)]
            for i, tensor in enumerate(inputs):
                tensor.set_data_from_numpy(np.full((1, 16), i + 2, np.float32))
            result = client.infer(
                "add_sub", inputs, request_id="1", timeout=1000, parameters={"x": 1}
            )
            assert result.as_numpy("OUTPUT0").tolist() == [[5.0] * 16]
            assert result.as_numpy("OUTPUT1").tolist() == [[-1.0] * 16]

    @pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
    def test_strings_and_compression(self, host: Host, algorithm: str | None) -> None:
        with triton.InferenceServerClient(host.address) as client:
            data = np.array([b"a", "ü".encode(), b"", b"x" * 10_000], object)
            tensor = triton.InferInput("INPUT0", [4], "BYTES")
            tensor.set_data_from_numpy(data)
            result = client.infer("identity", [tensor], compression_algorithm=algorithm)
            assert result.as_numpy("OUTPUT0").tolist() == data.tolist()

    def test_stream(self, host: Host) -> None:
        received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with triton.InferenceServerClient(host.address) as client:
            client.start_stream(callback=lambda result, error: received.put((result, error)))
            count = triton.InferInput("IN", [1], "INT32")
            count.set_data_from_numpy(np.array([5], np.int32))
            client.async_stream_infer(
                "repeat", [count], request_id="r", enable_empty_final_response=True
            )
            responses = [received.get(timeout=30) for _ in range(6)]
            assert [int(result.as_numpy("OUT")[0]) for result, _ in responses[:5]] == list(range(5))
            assert responses[5][0].get_response().parameters["triton_final_response"].bool_param
            client.stop_stream()

    async def test_asyncio(self, host: Host) -> None:
        async with triton_aio.InferenceServerClient(host.address) as client:
            tensor = triton_aio.InferInput("INPUT0", [3], "FP32")
            tensor.set_data_from_numpy(np.array([1, 2, 3], np.float32))
            results = await asyncio.gather(
                *(client.infer("identity", [tensor], request_id=str(i)) for i in range(100))
            )
            assert {result.get_response().id for result in results} == {str(i) for i in range(100)}
