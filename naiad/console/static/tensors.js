// Tensors for any model: a form made from its metadata. The data of an input is JSON, a file, an
// image or a drawing.

import {get, modelPath, send} from "./api.js";
import {codePanel, concreteShape, numElements, sampleData} from "./code.js";
import {drawing} from "./drawing.js";
import {bytes as sizeText, dash, h, milliseconds, number, problemBox, tabs} from "./dom.js";
import {imageInput, imageLayout} from "./image_input.js";
import {traceSwitch} from "./trace_switch.js";
import {decodeNpy, decodeResponse, encodeRequest, encodeStrings, encodeValues, needsBinary, width} from "./v2_codec.js";

const MAX_SHOWN_VALUES = 2000, MAX_SCORES = 100, MAX_TEXT_VALUES = 4096;

export async function tensors(area, row) {
  let metadata;
  try {
    metadata = await get(modelPath(row.name));
  } catch (error) {
    area.replaceChildren(problemBox(error));
    return;
  }
  const fields = metadata.inputs.map(input => inputField(input));
  const trace = traceSwitch();
  const result = h("section", {class: "card response", "aria-label": "Response", "aria-live": "polite"}, h("h2", null, "Response"), h("p", {class: "card-note"}, "Send a request to see one."));
  const code = h("div"), codeBox = h("details", {class: "card", hidden: true}, h("summary", null, "Show as code"), code);
  const button = h("button", {type: "submit", class: "primary"}, "Send");
  const show = (...content) => result.replaceChildren(h("h2", null, "Response"), ...content);
  const form = h("form", {class: "card", "aria-label": "Request", onsubmit: async event => {
    event.preventDefault();
    let inputs;
    try {
      inputs = fields.map(field => field.read()).filter(Boolean);
    } catch (error) {
      show(problemBox(error));
      return;
    }
    const request = encodeRequest(inputs, metadata.outputs.some(output => needsBinary(output.datatype)));
    button.disabled = true;
    const traceLine = h("p", {class: "card-note"});
    let traced = null;
    try {
      traced = await trace.begin();
      const headers = {...request.headers, ...traced.headers}, start = performance.now();
      const response = await decodeResponse(await send("POST", `${modelPath(row.name)}/infer`, undefined, {headers, body: request.body}));
      show(h("p", {class: "card-note"}, `${milliseconds(performance.now() - start)}, version ${response.model_version ?? dash}`), traceLine, ...response.outputs.map(showOutput));
    } catch (error) {
      if (row.is_decoupled) error.advice = "The model may respond several times: use generate_stream or gRPC.";
      show(problemBox(error), traceLine);
    }
    traced?.show(traceLine);
    button.disabled = false;
    code.replaceChildren(codePanel(row, {inputs, encoded: request}, metadata.outputs.map(output => output.name)));
    codeBox.hidden = false;
  }}, h("h2", null, "Request"), h("p", {class: "card-note"}, row.max_batch_size ? "The first dimension is the batch." : "The model does not batch."), fields.map(field => field.box), button, trace.box);
  area.replaceChildren(h("div", {class: "columns"}, form, h("div", null, result, codeBox)));
}

function inputField(input) {
  const shape = h("input", {value: concreteShape(input.shape).join(", "), inputmode: "numeric", spellcheck: "false", oninput: () => { loaded = null; }});
  const count = numElements(concreteShape(input.shape));
  const data = h("textarea", {class: "data", rows: count > 8 ? "4" : "2", spellcheck: "false", oninput: () => { loaded = null; },
    value: count > 64 && input.datatype !== "BYTES" ? "0" : JSON.stringify(sampleData(input))});
  // A tensor that is too large for a text field; the field shows a summary of it.
  let loaded = null;
  const load = ({shape: sizes, values, content, source}) => {
    shape.value = sizes.join(", ");
    if (values && values.length <= MAX_TEXT_VALUES && !needsBinary(input.datatype)) {
      loaded = null;
      data.value = JSON.stringify(values.map(value => Number.isInteger(value) ? value : Number(value.toFixed(5))));
      return;
    }
    loaded = {shape: sizes, content: content ?? encodeValues(input.datatype, values)};
    data.value = `${source}: ${sizeText(loaded.content.length)}. Type here to replace it.`;
  };
  const size = drawingSize(input), layout = imageLayout(input);
  const pad = size && drawing(size, pixels => {
    const scale = input.datatype === "UINT8" ? 255 : 1;
    load({shape: concreteShape(input.shape), values: pixels.map(value => scale === 255 ? Math.round(value * 255) : value), source: "the drawing"});
  });
  const ways = {};
  if (pad) ways.Draw = pad;
  if (layout) ways.Image = imageInput(input, ({shape: sizes, values}) => load({shape: sizes, values, source: "the image"}));
  ways.JSON = h("p", {class: "hint"}, "JSON, flat or nested. A single number fills the tensor.");
  ways.File = fileInput(input, () => shape.value, load);
  const way = h("div", {class: "way"});
  const {list, choose} = tabs(Object.keys(ways), name => way.replaceChildren(ways[name]), `Source of ${input.name}`);
  choose(Object.keys(ways)[0]);
  const box = h("fieldset", {class: "field plain"}, h("legend", null, h("strong", null, input.name), ` ${input.datatype} [${input.shape.join(", ")}]${input.optional ? ", optional" : ""}`),
    list, way, h("div", {class: "field"}, h("label", null, `Shape of ${input.name}`, shape)),
    h("label", null, `Data of ${input.name}`, data));
  return {box, read: () => loaded ? {name: input.name, datatype: input.datatype, shape: loaded.shape, bytes: loaded.content} : readInput(input, shape.value, data.value)};
}

// A file of JSON, of numpy.save, of raw bytes in the layout of the tensor, or for strings of anything.
function fileInput(input, shapeText, load) {
  const isText = input.datatype === "BYTES";
  const note = h("p", {class: "hint", role: "status"}, isText ? "The bytes of the file become one element, for example an image as it is." :
    "JSON, an .npy file of numpy.save, or the raw bytes of the tensor.");
  const file = h("input", {type: "file", "aria-label": `File for ${input.name}`, onchange: () => open(file.files[0])});
  async function open(chosen) {
    if (!chosen) return;
    try {
      const content = new Uint8Array(await chosen.arrayBuffer());
      const {shape} = loadFile(input, chosen.name, content, shapeText(), load);
      note.textContent = `${chosen.name}: [${shape.join(", ")}], ${sizeText(content.length)}`;
      note.classList.remove("bad");
    } catch (error) {
      note.textContent = `${chosen.name} cannot be used: ${error.message}.`;
      note.classList.add("bad");
    }
  }
  const box = h("div", {class: "drop"}, file, note);
  box.addEventListener("dragover", event => event.preventDefault());
  box.addEventListener("drop", event => { event.preventDefault(); open(event.dataTransfer.files[0]); });
  return box;
}

function loadFile(input, name, content, shapeText, load) {
  const source = `the file ${name}`;
  if (input.datatype === "BYTES" && !name.endsWith(".json")) {
    const tensor = {shape: input.shape.map(() => 1), content: encodeStrings([content]), source};
    load(tensor);
    return tensor;
  }
  if (name.endsWith(".json")) {
    const {sizes, values} = nestedValues(JSON.parse(new TextDecoder().decode(content)));
    const shape = sizes.length === input.shape.length ? sizes : parseShape(shapeText);
    if (numElements(shape) !== values.length) throw new Error(`it has ${values.length} values, and the shape [${shape}] has ${numElements(shape)}`);
    if (input.datatype === "BYTES") load({shape, content: encodeValues("BYTES", values), source});
    else load({shape, values, source});
    return {shape};
  }
  if (name.endsWith(".npy")) {
    const array = decodeNpy(content);
    if (array.datatype !== input.datatype) throw new Error(`its type is ${array.datatype}, and the input is ${input.datatype}`);
    load({shape: array.shape, content: array.bytes, source});
    return array;
  }
  const shape = parseShape(shapeText), expected = numElements(shape) * width(input.datatype);
  if (content.length !== expected) throw new Error(`it has ${content.length} bytes, and the shape [${shape}] of ${input.datatype} has ${expected}`);
  load({shape, content, source});
  return {shape};
}

function nestedValues(value) {
  const sizes = [];
  for (let part = value; Array.isArray(part); [part] = part) sizes.push(part.length);
  return {sizes, values: Array.isArray(value) ? value.flat(Infinity) : [value]};
}

// The side of a square grey image, if the tensor can be one.
function drawingSize(input) {
  const shape = concreteShape(input.shape), [height, side] = shape.slice(-2);
  const isImage = shape.length >= 2 && height === side && height >= 8 && height <= 256 && numElements(shape) === height * side;
  return isImage && ["FP32", "FP64", "UINT8"].includes(input.datatype) ? height : 0;
}

function wrong(input, message) {
  return Object.assign(new Error(message), {title: `The input '${input.name}' is not valid`, advice: "Nothing was sent."});
}

const parseShape = text => text.split(/[\s,]+/).filter(Boolean).map(Number);

function readInput(input, shapeText, text) {
  if (!text.trim()) {
    if (input.optional) return null;
    throw wrong(input, "the data is empty");
  }
  const shape = parseShape(shapeText);
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
  const isScores = /^B?FP?/.test(output.datatype) && output.datatype !== "BYTES" && values.length > 1 && values.length <= MAX_SCORES && numElements(output.shape.slice(0, -1)) === 1;
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
