// The same request as code: curl, tritonclient over HTTP and gRPC, openai.

import {session} from "./api.js";
import {copy, h, tabs} from "./dom.js";

const MAX_INLINE_CHARS = 1500;
const NUMPY = {BOOL: "bool", UINT8: "uint8", UINT16: "uint16", UINT32: "uint32", UINT64: "uint64", INT8: "int8", INT16: "int16", INT32: "int32", INT64: "int64",
  FP16: "float16", BF16: "float32", FP32: "float32", FP64: "float64", BYTES: "object"};
const origin = () => location.origin;
const host = () => location.hostname.includes(":") ? `[${location.hostname}]` : location.hostname;
const key = "$NAIAD_API_KEY";

export const numElements = shape => shape.reduce((product, size) => product * size, 1);
export const concreteShape = shape => shape.map(size => size < 0 ? 1 : size);

export function sampleData(input) {
  const count = numElements(concreteShape(input.shape));
  if (input.datatype === "BYTES") return Array(count).fill("hello");
  if (input.datatype === "BOOL") return Array(count).fill(false);
  return count <= 64 ? Array.from({length: count}, (_, index) => index) : Array(count).fill(0);
}

export const sampleRequest = metadata => ({inputs: metadata.inputs.filter(input => !input.optional).map(input => (
  {name: input.name, datatype: input.datatype, shape: concreteShape(input.shape), data: sampleData(input)}))});

export const sampleChat = name => ({model: name, messages: [{role: "user", content: "What is the capital of France?"}], max_tokens: 100});

const quote = text => `'${text.replaceAll("'", "'\\''")}'`;
const python = value => JSON.stringify(value, null, 1).replace(/\n\s*/g, " ").replace(/\btrue\b/g, "True").replace(/\bfalse\b/g, "False").replace(/\bnull\b/g, "None");

function curl(path, body) {
  const text = JSON.stringify(body);
  const header = session.info.needs_key ? ` \\\n  -H "Authorization: Bearer ${key}"` : "";
  if (text.length <= MAX_INLINE_CHARS) return `curl ${origin()}${path}${header} \\\n  -H 'Content-Type: application/json' \\\n  -d ${quote(text)}`;
  return `# request.json is the whole request; the button downloads it\ncurl ${origin()}${path}${header} \\\n  -H 'Content-Type: application/json' \\\n  -d @request.json`;
}

const keyLines = () => session.info.needs_key ? ["import os", ""] : [""];

function arrayText(input) {
  const type = NUMPY[input.datatype] ?? "float32", text = python(input.data);
  if (input.data.length && text.length <= MAX_INLINE_CHARS) {
    const values = input.datatype === "BYTES" ? `[text.encode() for text in ${text}]` : text;
    return `np.array(${values}, dtype=np.${type === "object" ? "object_" : type === "bool" ? "bool_" : type}).reshape(${JSON.stringify(input.shape)})`;
  }
  return `np.array(json.load(open("request.json"))["inputs"][INDEX]["data"], dtype=np.${type === "object" ? "object_" : type}).reshape(${JSON.stringify(input.shape)})`;
}

function tritonclient(kind, name, request, outputs) {
  const url = kind === "http" ? location.host : `${host()}:${session.info.grpc_port}`;
  const lines = request.inputs.map((input, index) => [
    `inputs.append(client_module.InferInput(${JSON.stringify(input.name)}, ${JSON.stringify(input.shape)}, "${input.datatype}"))`,
    `inputs[-1].set_data_from_numpy(${arrayText(input).replace("INDEX", index)})`]).flat();
  const isTls = location.protocol === "https:" ? ", ssl=True" : "";
  const headers = session.info.needs_key ? `, headers={"authorization": f"Bearer {os.environ['NAIAD_API_KEY']}"}` : "";
  const needsFile = lines.some(line => line.includes("request.json"));
  return [`# pip install tritonclient[${kind}]`, ...(needsFile ? ["import json"] : []), ...keyLines().filter((line, index, all) => line || index === all.length - 1),
    "import numpy as np", `import tritonclient.${kind} as client_module`, "", `client = client_module.InferenceServerClient("${url}"${isTls})`, "inputs = []", ...lines,
    `result = client.infer(${JSON.stringify(name)}, inputs${headers})`, ...outputs.map(output => `print(result.as_numpy(${JSON.stringify(output)}))`)].join("\n");
}

function openai(request) {
  const {model, messages, stream, ...rest} = request;
  const names = Object.entries(rest).filter(([, value]) => value !== undefined).map(([name, value]) => `    ${name}=${python(value)},`);
  const apiKey = session.info.needs_key ? "os.environ[\"NAIAD_API_KEY\"]" : "\"none\"";
  return ["# pip install openai", ...(session.info.needs_key ? ["import os", ""] : []), "from openai import OpenAI", "",
    `client = OpenAI(base_url="${origin()}/v1", api_key=${apiKey})`, "stream = client.chat.completions.create(", `    model=${python(model)},`, `    messages=${python(messages)},`, ...names,
    "    stream=True,", ")", "for chunk in stream:", "    if chunk.choices:", "        print(chunk.choices[0].delta.content or \"\", end=\"\", flush=True)", "print()"].join("\n");
}

// `request` is a chat request or an inference request, as it is sent.
export function codePanel(row, request, outputs) {
  const path = `/v2/models/${encodeURIComponent(row.name)}/infer`, isChat = "messages" in request;
  const samples = isChat ? {curl: () => curl("/v1/chat/completions", request), openai: () => openai(request)} :
    {curl: () => curl(path, request), "tritonclient HTTP": () => tritonclient("http", row.name, request, outputs),
      ...(session.info.grpc_port ? {"tritonclient gRPC": () => tritonclient("grpc", row.name, request, outputs)} : {})};
  const text = h("pre"), button = h("button", {type: "button", class: "small", onclick: () => copy(text.textContent, button)}, "Copy");
  const body = JSON.stringify(request);
  const download = h("button", {type: "button", class: "small", hidden: body.length <= MAX_INLINE_CHARS, onclick: () => {
    const link = h("a", {href: URL.createObjectURL(new Blob([body], {type: "application/json"})), download: "request.json"});
    link.click();
    URL.revokeObjectURL(link.href);
  }}, "Download request.json");
  const {list, choose} = tabs(Object.keys(samples), name => { text.textContent = samples[name](); }, "Languages");
  choose(Object.keys(samples)[0]);
  return h("div", null, h("div", {class: "code-bar"}, list, h("div", {class: "row"}, download, button)),
    h("div", {class: "code", tabindex: "0", role: "region", "aria-label": "Code"}, text),
    session.info.needs_key ? h("p", {class: "hint"}, "Set NAIAD_API_KEY to a key with the scope 'inference'.") : null);
}

export function accessPanel(row, metadata) {
  const request = row.is_language ? sampleChat(row.name) : sampleRequest(metadata);
  const addresses = [["HTTP", `${origin()}/v2/models/${encodeURIComponent(row.name)}/infer`],
    ...(session.info.grpc_port ? [["gRPC", `${host()}:${session.info.grpc_port}`]] : []),
    ...(row.is_language ? [["OpenAI", `${origin()}/v1`]] : [])];
  return h("div", null, h("dl", null, addresses.map(([title, address]) => {
    const button = h("button", {type: "button", class: "small", onclick: () => copy(address, button), "aria-label": `Copy the ${title} address`}, "Copy");
    return h("div", null, h("dt", null, title), h("dd", {class: "row"}, h("code", null, address), button));
  })), h("p", {class: "hint"}), codePanel(row, request, metadata.outputs.map(output => output.name)));
}
