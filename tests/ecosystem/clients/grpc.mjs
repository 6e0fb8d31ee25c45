import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import assert from "node:assert";
import path from "node:path";

const folder = path.join(process.env.NAIAD_ROOT, "proto", "client");
const definition = loader.loadSync(["grpc_service.proto", "health.proto"], {includeDirs: [folder], keepCase: true});
const {inference} = grpc.loadPackageDefinition(definition);
const client = new inference.GRPCInferenceService(process.env.NAIAD_GRPC, grpc.credentials.createInsecure());
const ask = (name, request) => new Promise((resolve, reject) => client[name](request, (error, reply) => error ? reject(error) : resolve(reply)));
assert.equal((await ask("ServerLive", {})).live, true);
const raw = Buffer.from(new Float32Array([1, 2, 3, 4]).buffer);
const inputs = ["INPUT0", "INPUT1"].map(name => ({name, datatype: "FP32", shape: [1, 4]}));
const reply = await ask("ModelInfer", {model_name: "add_sub", inputs, raw_input_contents: [raw, raw]});
assert.equal(reply.raw_output_contents[0].readFloatLE(12), 8);
client.close();
