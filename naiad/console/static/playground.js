// The playground: chat with language models, tensors for all others.

import {get, may, messageOf, modelPath, Refusal, send} from "./api.js";
import {codePanel, concreteShape, numElements, sampleData} from "./code.js";
import {drawing} from "./drawing.js";
import {dash, h, number, problemBox} from "./dom.js";
import {listen, live} from "./live.js";

const MAX_SHOWN_VALUES = 2000, MAX_SCORES = 100;
const drafts = new Map();

export function show(root, name) {
  const select = h("select", {"aria-label": "Model", onchange: () => { location.hash = `#/playground/${encodeURIComponent(select.value)}`; }});
  const area = h("div");
  root.append(h("div", {class: "head"}, h("h1", null, "Playground"), h("div", {class: "tools"}, select)), area);
  let shown = null;
  const stop = listen(() => {
    const rows = [...live.models.values()].filter(row => row.state === "READY");
    const names = rows.map(row => row.name);
    if (select.dataset.names !== names.join("\n")) {
      select.dataset.names = names.join("\n");
      select.replaceChildren(...names.map(text => h("option", {value: text}, text)));
    }
    const row = rows.find(row => row.name === name) ?? (name ? null : rows.find(row => row.is_language) ?? rows[0]);
    if (row) select.value = row.name;
    const key = row ? row.name : "";
    // What was typed stays while the model reloads or the server restarts.
    if (shown === key || (shown && !row)) return;
    shown = key;
    select.hidden = !names.length;
    area.replaceChildren();
    if (row) (row.is_language ? chat : tensors)(area, row);
    else area.append(h("section", {class: "card empty"}, h("h2", null, name ? `${name} is not ready` : "No model is ready"),
      h("p", null, "Load a model on the ", h("a", {href: "#/models"}, "Models"), " page.")));
  });
  return stop;
}

// Chat.

function chat(area, row) {
  const draft = drafts.get(row.name) ?? {turns: [], system: ""};
  drafts.set(row.name, draft);
  const log = h("div", {class: "chat", role: "log", "aria-label": "Conversation", tabindex: "0"});
  const input = h("textarea", {rows: "2", placeholder: "Write a message. Enter sends it, Shift+Enter starts a new line.", "aria-label": "Message"});
  const sendButton = h("button", {type: "submit", class: "primary"}, "Send");
  const stopButton = h("button", {type: "button", hidden: true, onclick: () => abort?.abort()}, "Stop");
  const system = h("textarea", {rows: "3", placeholder: "You are a helpful assistant.", oninput: () => { draft.system = system.value; }, value: draft.system});
  const setting = (title, attributes, hint) => {
    const field = h("input", {type: "number", ...attributes});
    return {field, box: h("div", {class: "field"}, h("label", null, title, field), hint && h("p", {class: "hint"}, hint)),
      value: () => field.value === "" ? undefined : Number(field.value)};
  };
  const settings = {
    max_tokens: setting("Most tokens", {min: "1", max: "32768", value: "256"}),
    temperature: setting("Temperature", {min: "0", max: "2", step: "0.1", placeholder: "of the model"}, "0 always chooses the likeliest token."),
    top_p: setting("Top p", {min: "0", max: "1", step: "0.05", placeholder: "of the model"}),
    seed: setting("Seed", {min: "0", step: "1", placeholder: "random"}, "The same seed gives the same text again."),
  };
  const code = h("div"), codeBox = h("details", {class: "card", hidden: true}, h("summary", null, "Show as code"), code);
  let abort = null;

  function turn(role, text) {
    const content = h("span", null, text), note = h("span", {class: "sub"});
    const element = h("div", {class: `turn ${role}`}, content, note);
    empty.remove();
    log.append(element);
    log.scrollTop = log.scrollHeight;
    return {element, content, note};
  }
  const empty = h("div", {class: "empty"}, h("h2", null, `Chat with ${row.name}`), h("p", null, "Nothing is stored: the conversation lives in this page."));
  log.append(empty);
  draft.turns.forEach(({role, content}) => turn(role, content));

  async function submit(event) {
    event?.preventDefault();
    const text = input.value.trim();
    if (!text || abort) return;
    input.value = "";
    draft.turns.push({role: "user", content: text});
    turn("user", text);
    const messages = [...(draft.system.trim() ? [{role: "system", content: draft.system.trim()}] : []), ...draft.turns];
    const request = {model: row.name, messages, ...Object.fromEntries(Object.entries(settings).map(([name, item]) => [name, item.value()]))};
    code.replaceChildren(codePanel(row, request, []));
    codeBox.hidden = false;
    const answer = turn("assistant", "");
    abort = new AbortController();
    sendButton.hidden = true;
    stopButton.hidden = false;
    stopButton.focus();
    const start = performance.now();
    let first = null, count = 0, reply = "", usage = null, end = "";
    try {
      const response = await send("POST", "/v1/chat/completions", {...request, stream: true, stream_options: {include_usage: true}}, {signal: abort.signal});
      for await (const chunk of events(response)) {
        if (chunk.error) throw new Refusal(500, messageOf(JSON.stringify(chunk)));
        usage = chunk.usage ?? usage;
        const choice = chunk.choices?.[0];
        if (choice?.finish_reason === "length") end = "cut at the limit of tokens";
        const piece = choice?.delta?.content;
        if (!piece) continue;
        first ??= performance.now();
        count++;
        reply += piece;
        answer.content.textContent = reply;
        log.scrollTop = log.scrollHeight;
      }
    } catch (error) {
      if (error.name === "AbortError") end = "stopped";
      else {
        answer.element.classList.add("refused");
        answer.content.replaceChildren(reply, problemBox(error));
      }
    }
    const now = performance.now();
    const tokens = usage?.completion_tokens ?? count;
    answer.note.textContent = [first && `first token after ${Math.round(first - start)} ms`,
      first && tokens > 1 && now > first && `${number((tokens - 1) / (now - first) * 1000)} tokens/s`, tokens && `${tokens} tokens`, end].filter(Boolean).join(" · ");
    if (reply) draft.turns.push({role: "assistant", content: reply});
    else { draft.turns.pop(); input.value ||= text; }
    abort = null;
    stopButton.hidden = true;
    sendButton.hidden = false;
    input.focus();
  }

  input.addEventListener("keydown", event => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event); });
  const clear = h("button", {type: "button", class: "small", onclick: () => { abort?.abort(); draft.turns = []; log.replaceChildren(empty); }}, "Clear");
  area.append(h("div", {class: "columns side"},
    h("div", null, h("section", {class: "card", "aria-label": "Chat"}, log, h("form", {class: "composer", onsubmit: submit}, input, sendButton, stopButton)), codeBox),
    h("section", {class: "card", "aria-label": "Settings"}, h("div", {class: "field"}, h("label", null, "System prompt", system)), Object.values(settings).map(item => item.box), clear)));
  if (!may("inference")) input.placeholder = "Your key lacks the scope 'inference'.";
}

// The JSON of each server-sent event of a response.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter(line => line.startsWith("data:")).map(line => line.slice(5).trim()).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

// Tensors.

async function tensors(area, row) {
  let metadata;
  try {
    metadata = await get(modelPath(row.name));
  } catch (error) {
    area.replaceChildren(problemBox(error));
    return;
  }
  const fields = metadata.inputs.map(input => inputField(input));
  const result = h("section", {class: "card", "aria-label": "Response", "aria-live": "polite"}, h("h2", null, "Response"), h("p", {class: "card-note"}, "Send a request to see one."));
  const code = h("div"), codeBox = h("details", {class: "card", hidden: true}, h("summary", null, "Show as code"), code);
  const button = h("button", {type: "submit", class: "primary"}, "Send");
  const form = h("form", {class: "card", "aria-label": "Request", onsubmit: async event => {
    event.preventDefault();
    let request;
    try {
      request = {inputs: fields.map(field => field.read()).filter(Boolean)};
    } catch (error) {
      result.replaceChildren(h("h2", null, "Response"), problemBox(error));
      return;
    }
    button.disabled = true;
    const start = performance.now();
    try {
      const response = await (await send("POST", `${modelPath(row.name)}/infer`, request)).json();
      result.replaceChildren(h("h2", null, "Response"), h("p", {class: "card-note"}, `${number(performance.now() - start)} ms, version ${response.model_version ?? dash}`),
        ...response.outputs.map(showOutput));
    } catch (error) {
      const advice = row.is_decoupled ? {...error, title: error.title, message: error.message, advice: "The model may respond several times: use generate_stream or gRPC."} : error;
      result.replaceChildren(h("h2", null, "Response"), problemBox(advice));
    }
    button.disabled = false;
    code.replaceChildren(codePanel(row, request, metadata.outputs.map(output => output.name)));
    codeBox.hidden = false;
  }}, h("h2", null, "Request"), h("p", {class: "card-note"}, row.max_batch_size ? "The first dimension is the batch." : "The model does not batch."), fields.map(field => field.box), button);
  area.replaceChildren(h("div", {class: "columns"}, form, h("div", null, result, codeBox)));
}

function inputField(input) {
  const shape = h("input", {value: concreteShape(input.shape).join(", "), inputmode: "numeric", spellcheck: "false"});
  const count = numElements(concreteShape(input.shape));
  const data = h("textarea", {class: "data", rows: count > 8 ? "4" : "2", spellcheck: "false",
    value: count > 64 && input.datatype !== "BYTES" ? "0" : JSON.stringify(sampleData(input))});
  const size = imageSize(input);
  const pad = size && drawing(size, pixels => {
    const scale = input.datatype === "UINT8" ? 255 : 1;
    data.value = JSON.stringify(pixels.map(value => scale === 255 ? Math.round(value * 255) : Number(value.toFixed(3))));
    shape.value = concreteShape(input.shape).join(", ");
  });
  const box = h("fieldset", {class: "field plain"}, h("legend", null, h("strong", null, input.name), ` ${input.datatype} [${input.shape.join(", ")}]`),
    pad, h("div", {class: "field"}, h("label", null, `Shape of ${input.name}`, shape)),
    h("label", null, `Data of ${input.name}`, data), h("p", {class: "hint"}, "JSON, flat or nested. A single number fills the tensor."));
  return {box, read: () => readInput(input, shape.value, data.value)};
}

// The side of a square grey image, if the tensor can be one.
function imageSize(input) {
  const shape = concreteShape(input.shape), [height, width] = shape.slice(-2);
  const isImage = shape.length >= 2 && height === width && height >= 8 && height <= 256 && numElements(shape) === height * width;
  return isImage && ["FP32", "FP64", "UINT8"].includes(input.datatype) ? height : 0;
}

function wrong(input, message) {
  return Object.assign(new Error(message), {title: `The input '${input.name}' is not valid`, advice: "Nothing was sent."});
}

function readInput(input, shapeText, text) {
  if (!text.trim()) {
    if (input.optional) return null;
    throw wrong(input, "the data is empty");
  }
  const shape = shapeText.split(/[\s,]+/).filter(Boolean).map(Number);
  if (shape.some(size => !Number.isInteger(size) || size < 0)) throw wrong(input, `the shape '${shapeText}' must be whole numbers with commas between them`);
  let data;
  try {
    data = JSON.parse(text);
  } catch (error) {
    throw wrong(input, `the data is not JSON: ${error.message}`);
  }
  const count = numElements(shape);
  data = Array.isArray(data) ? data.flat(Infinity) : Array(count).fill(data);
  if (data.length !== count) throw wrong(input, `the shape [${shape}] has ${count} elements, and the data has ${data.length}`);
  return {name: input.name, datatype: input.datatype, shape, data};
}

function showOutput(output) {
  const values = output.data ?? [], title = h("h2", null, output.name, h("span", {class: "card-note"}, ` ${output.datatype} [${output.shape.join(", ")}]`));
  const isScores = /^FP/.test(output.datatype) && values.length > 1 && values.length <= MAX_SCORES && numElements(output.shape.slice(0, -1)) === 1;
  const shown = values.length > MAX_SHOWN_VALUES ? `${JSON.stringify(values.slice(0, MAX_SHOWN_VALUES)).slice(0, -1)}, … ${values.length - MAX_SHOWN_VALUES} more]` : JSON.stringify(values);
  const text = h("pre", {class: "code", tabindex: "0"}, shown);
  return h("div", {class: "field"}, title, isScores ? [scores(values), h("details", null, h("summary", null, "Values"), text)] : text);
}

// The largest of a row of numbers is what a classifier says.
function scores(values) {
  const best = values.indexOf(Math.max(...values)), low = Math.min(0, ...values), high = Math.max(...values);
  const order = values.map((value, index) => [value, index]).sort(([a], [b]) => b - a).slice(0, 10).sort(([, a], [, b]) => a - b);
  return h("div", null, h("p", {class: "card-note"}, "Largest value at index"), h("div", {class: "answer", id: "answer"}, String(best)),
    h("ol", {class: "scores"}, order.map(([value, index]) => h("li", {class: index === best ? "top" : ""}, h("span", null, String(index)),
      h("meter", {min: "0", max: String(high - low || 1), value: String(value - low), "aria-label": `Score of ${index}`}), h("span", null, number(value))))));
}
