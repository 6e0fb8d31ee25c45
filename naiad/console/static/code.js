// The same request as code: curl, tritonclient over HTTP and gRPC, openai.

import {base, session} from "./api.js";
import {copy, h, tabs} from "./dom.js";

const MAX_INLINE_CHARS = 1500;
const NUMPY = {BOOL: "bool", UINT8: "uint8", UINT16: "uint16", UINT32: "uint32", UINT64: "uint64", INT8: "int8", INT16: "int16", INT32: "int32", INT64: "int64",
  FP16: "float16", BF16: "float32", FP32: "float32", FP64: "float64", BYTES: "object"};
// Parameters of openai's own function; others go into extra_body.
const OPENAI_FIELDS = new Set(["max_tokens", "temperature", "top_p", "seed", "stop", "frequency_penalty", "presence_penalty", "tools", "tool_choice", "response_format"]);
const origin = () => location.origin + base;
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

function curl(path, request) {
  const header = session.info.needs_key ? ` \\\n  -H "Authorization: Bearer ${key}"` : "";
  const {headerLength} = request.encoded ?? {};
  if (headerLength) {
    return `# request.bin is the whole request; the button downloads it\ncurl ${origin()}${path}${header} \\\n  -H 'Content-Type: application/octet-stream' \\\n`
      + `  -H 'Inference-Header-Content-Length: ${headerLength}' \\\n  --data-binary @request.bin`;
  }
  const text = bodyOf(request);
  if (text.length <= MAX_INLINE_CHARS) return `curl ${origin()}${path}${header} \\\n  -H 'Content-Type: application/json' \\\n  -d ${quote(text)}`;
  return `# request.json is the whole request; the button downloads it\ncurl ${origin()}${path}${header} \\\n  -H 'Content-Type: application/json' \\\n  -d @request.json`;
}

// What is sent: text, or a Blob where tensors are binary.
const bodyOf = request => request.encoded?.body ?? JSON.stringify(request);
const keyLines = () => session.info.needs_key ? ["import os"] : [];

// The value of an input in Python. `offset` is where its bytes are in request.bin.
function arrayText(input, index, offset) {
  const type = NUMPY[input.datatype] ?? "float32", name = type === "object" ? "object_" : type === "bool" ? "bool_" : type, shape = JSON.stringify(input.shape);
  if (input.bytes) {
    const raw = `request[${offset}:${offset + input.bytes.length}]`;
    if (input.datatype === "BYTES") return `deserialize_bytes_tensor(${raw}).reshape(${shape})`;
    if (input.datatype === "BF16") return `deserialize_bf16_tensor(${raw}).reshape(${shape})`;
    return `np.frombuffer(${raw}, dtype=np.${name}).reshape(${shape})`;
  }
  const text = python(input.data);
  if (input.data.length && text.length <= MAX_INLINE_CHARS) {
    const values = input.datatype === "BYTES" ? `[text.encode() for text in ${text}]` : text;
    return `np.array(${values}, dtype=np.${name}).reshape(${shape})`;
  }
  return `np.array(json.load(open("request.json"))["inputs"][${index}]["data"], dtype=np.${name}).reshape(${shape})`;
}

function tritonclient(kind, name, request, outputs) {
  const url = kind === "http" ? location.host + base : `${host()}:${session.info.grpc_port}`;
  let offset = request.encoded?.headerLength ?? 0;
  const lines = request.inputs.map((input, index) => {
    const text = arrayText(input, index, offset);
    offset += input.bytes?.length ?? 0;
    return [`inputs.append(client_module.InferInput(${JSON.stringify(input.name)}, ${JSON.stringify(input.shape)}, "${input.datatype}"))`,
      `inputs[-1].set_data_from_numpy(${text})`];
  }).flat();
  const isTls = location.protocol === "https:" ? ", ssl=True" : "";
  const headers = session.info.needs_key ? `, headers={"authorization": f"Bearer {os.environ['NAIAD_API_KEY']}"}` : "";
  const utilities = ["deserialize_bytes_tensor", "deserialize_bf16_tensor"].filter(utility => lines.some(line => line.includes(utility)));
  const isBinary = request.inputs.some(input => input.bytes), needsFile = lines.some(line => line.includes("request.json"));
  return [`# pip install tritonclient[${kind}]`, ...(needsFile ? ["import json"] : []), ...keyLines(), "",
    "import numpy as np", `import tritonclient.${kind} as client_module`, ...(utilities.length ? [`from tritonclient.utils import ${utilities.join(", ")}`] : []), "",
    `client = client_module.InferenceServerClient("${url}"${isTls})`, ...(isBinary ? ["request = open(\"request.bin\", \"rb\").read()  # the button downloads it"] : []), "inputs = []", ...lines,
    `result = client.infer(${JSON.stringify(name)}, inputs${headers})`, ...outputs.map(output => `print(result.as_numpy(${JSON.stringify(output)}))`)].join("\n");
}

const openaiHead = () => ["# pip install openai", ...keyLines(), ...(session.info.needs_key ? [""] : []), "from openai import OpenAI", "",
  `client = OpenAI(base_url="${origin()}/v1", api_key=${session.info.needs_key ? "os.environ[\"NAIAD_API_KEY\"]" : "\"none\""})`];

function openai(request) {
  const {model, messages, stream, ...rest} = request;
  const others = Object.fromEntries(Object.entries(rest).filter(([name, value]) => value !== undefined && !OPENAI_FIELDS.has(name)));
  const names = Object.entries(rest).filter(([name, value]) => value !== undefined && OPENAI_FIELDS.has(name)).map(([name, value]) => `    ${name}=${python(value)},`);
  return [...openaiHead(), "stream = client.chat.completions.create(", `    model=${python(model)},`, `    messages=${python(messages)},`, ...names,
    ...(Object.keys(others).length ? [`    extra_body=${python(others)},`] : []),
    "    stream=True,", ")", "for chunk in stream:", "    for choice in chunk.choices:", "        print(choice.delta.content or \"\", end=\"\", flush=True)",
    ...(request.tools ? ["        for call in choice.delta.tool_calls or []:", "            print(call.function.name or \"\", call.function.arguments or \"\", end=\"\", flush=True)"] : []), "print()"].join("\n");
}

const openaiEmbeddings = request => [...openaiHead(), "response = client.embeddings.create(", `    model=${python(request.model)},`, `    input=${python(request.input)},`, ")",
  "for item in response.data:", "    print(item.index, len(item.embedding), item.embedding[:4])"].join("\n");

function samplesOf(row, request, outputs) {
  const path = `/v2/models/${encodeURIComponent(row.name)}/infer`;
  if ("messages" in request) return {curl: () => curl("/v1/chat/completions", request), openai: () => openai(request)};
  if ("input" in request) return {curl: () => curl("/v1/embeddings", request), openai: () => openaiEmbeddings(request)};
  return {curl: () => curl(path, request), "tritonclient HTTP": () => tritonclient("http", row.name, request, outputs),
    ...(session.info.grpc_port ? {"tritonclient gRPC": () => tritonclient("grpc", row.name, request, outputs)} : {})};
}

// `request` is as it is sent: a chat, texts to embed, or tensors ({inputs, encoded}).
export function codePanel(row, request, outputs) {
  const samples = samplesOf(row, request, outputs);
  const text = h("pre"), button = h("button", {type: "button", class: "small", onclick: () => copy(text.textContent, button)}, "Copy");
  const body = bodyOf(request), isBinary = body instanceof Blob, file = isBinary ? "request.bin" : "request.json";
  const download = h("button", {type: "button", class: "small", hidden: !isBinary && body.length <= MAX_INLINE_CHARS, onclick: () => {
    const link = h("a", {href: URL.createObjectURL(isBinary ? body : new Blob([body], {type: "application/json"})), download: file});
    link.click();
    URL.revokeObjectURL(link.href);
  }}, `Download ${file}`);
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
