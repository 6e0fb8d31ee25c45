// What a chat request says besides its messages: system prompt, sampling, tools, format.

import {h} from "./dom.js";

const EXAMPLE_TOOL = [{type: "function", function: {name: "get_weather", description: "The weather in a city now.",
  parameters: {type: "object", properties: {city: {type: "string"}}, required: ["city"]}}}];
const EXAMPLE_SCHEMA = {type: "object", properties: {city: {type: "string"}, country: {type: "string"}}, required: ["city", "country"]};
// Stays while the user goes from page to page.
const kept = {};

export function settingsPanel() {
  const keep = (name, element) => {
    if (kept[name] !== undefined) element.value = kept[name];
    element.addEventListener("input", () => { kept[name] = element.value; });
    return element;
  };
  const system = keep("system", h("textarea", {rows: "3", placeholder: "You are a helpful assistant."}));
  const setting = (name, title, attributes, hint) => {
    const field = keep(name, h("input", {type: "number", ...attributes}));
    return {name, field, box: h("div", {class: "field"}, h("label", null, title, field), hint && h("p", {class: "hint"}, hint))};
  };
  const numbers = [
    setting("max_tokens", "Most tokens", {min: "1", max: "32768", value: "256"}),
    setting("temperature", "Temperature", {min: "0", max: "2", step: "0.1", placeholder: "of the model"}, "0 always chooses the likeliest token."),
    setting("top_p", "Top p", {min: "0", max: "1", step: "0.05", placeholder: "of the model"}),
    setting("top_k", "Top k", {min: "0", step: "1", placeholder: "of the model"}),
    setting("frequency_penalty", "Frequency penalty", {min: "-2", max: "2", step: "0.1", placeholder: "0"}),
    setting("presence_penalty", "Presence penalty", {min: "-2", max: "2", step: "0.1", placeholder: "0"}),
    setting("seed", "Seed", {min: "0", step: "1", placeholder: "random"}, "The same seed gives the same text again."),
  ];
  const stop = keep("stop", h("textarea", {rows: "2", placeholder: "none", spellcheck: "false"}));
  const tools = jsonField(keep("tools", h("textarea", {class: "data", rows: "7", spellcheck: "false", placeholder: "[]"})),
    "Functions as JSON", EXAMPLE_TOOL, updateChoice);
  const choice = h("select", {"aria-label": "When to call"});
  const schema = jsonField(keep("schema", h("textarea", {class: "data", rows: "7", spellcheck: "false", placeholder: "{}"})),
    "Schema", EXAMPLE_SCHEMA, () => {});
  const format = keep("format", h("select", {"aria-label": "Format of the response", onchange: updateFormat}, [["", "Text"], ["json_object", "JSON object"],
    ["json_schema", "JSON schema"]].map(([value, text]) => h("option", {value}, text))));
  if (kept.format) format.value = kept.format;

  function updateFormat() {
    schema.box.hidden = format.value !== "json_schema";
  }
  function updateChoice() {
    const names = readFunctions(tools, []).map(tool => tool.function.name);
    const values = [["auto", "The model decides"], ["required", "It must call one"], ["none", "It must not call one"],
      ...names.map(name => [`=${name}`, `It must call ${name}`])];
    const before = choice.value || "auto";
    choice.replaceChildren(...values.map(([value, text]) => h("option", {value}, text)));
    choice.value = values.some(([value]) => value === before) ? before : "auto";
    choice.parentElement.hidden = !names.length;
  }

  const box = h("div", null, h("div", {class: "field"}, h("label", null, "System prompt", system)),
    numbers.slice(0, 2).map(item => item.box),
    h("details", {class: "field", open: numbers.slice(2).some(item => item.field.value !== "") || stop.value !== ""}, h("summary", null, "More sampling"),
      numbers.slice(2).map(item => item.box), h("div", {class: "field"}, h("label", null, "Stop texts, one per line", stop))),
    h("details", {class: "field", open: tools.field.value !== ""}, h("summary", null, "Tools"),
      tools.box, h("div", {class: "field"}, h("label", null, "When to call", choice))),
    h("details", {class: "field", open: format.value !== ""}, h("summary", null, "Response format"),
      h("div", {class: "field"}, h("label", null, "Format", format)), schema.box));
  updateFormat();
  updateChoice();

  // The fields of a request. Throws an error that names the field that is not valid.
  function read() {
    const request = {system: system.value.trim()};
    for (const {name, field} of numbers) {
      if (!field.checkValidity()) throw wrong(field.parentElement.firstChild.textContent, field.validationMessage);
      if (field.value !== "") request[name] = Number(field.value);
    }
    const texts = stop.value.split("\n").filter(Boolean);
    if (texts.length) request.stop = texts;
    const functions = readFunctions(tools);
    if (functions.length) {
      request.tools = functions;
      const value = choice.value;
      request.tool_choice = value.startsWith("=") ? {type: "function", function: {name: value.slice(1)}} : value;
    }
    if (format.value === "json_object") request.response_format = {type: "json_object"};
    if (format.value === "json_schema") {
      request.response_format = {type: "json_schema", json_schema: {name: "response", schema: schema.read({})}};
    }
    return request;
  }
  return {box, read};
}

// Accepts OpenAI's list of tools, one tool, or a function without its wrapper.
function readFunctions(tools, otherwise) {
  let value;
  try {
    value = tools.read([]);
  } catch (error) {
    if (otherwise) return otherwise;
    throw error;
  }
  const list = (Array.isArray(value) ? value : [value]).map(tool => tool?.function ? tool : {type: "function", function: tool});
  if (list.every(tool => typeof tool.function?.name === "string")) return list;
  if (otherwise) return otherwise;
  throw wrong("Functions as JSON", "each function needs a \"name\"");
}

function jsonField(field, title, example, onChange) {
  const problem = h("p", {class: "hint bad", role: "status"});
  const read = empty => {
    if (!field.value.trim()) return empty;
    try {
      return JSON.parse(field.value);
    } catch (error) {
      throw wrong(title, `it is not JSON: ${error.message}`);
    }
  };
  const check = () => {
    problem.textContent = "";
    try {
      read(null);
    } catch (error) {
      problem.textContent = error.message;
    }
    onChange();
  };
  field.addEventListener("input", check);
  const button = h("button", {type: "button", class: "small", onclick: () => {
    field.value = JSON.stringify(example, null, 2);
    field.dispatchEvent(new Event("input"));
  }}, "Insert an example");
  return {field, read, box: h("div", {class: "field"}, h("label", null, title, field), problem, button)};
}

function wrong(title, message) {
  return Object.assign(new Error(message), {title: `${title} is not valid`, advice: "Nothing was sent."});
}
