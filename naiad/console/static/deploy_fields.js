// The parts of the deploy form that fill in a config: tensors, environment, instances, processes, batching, engine.
// Every element that belongs to a field of config.pbtxt has its path in data-path, so that problems find it.

import {bytes, h} from "./dom.js";

export const ENGINE_FIELDS = [
  {name: "checkpoint", title: "Checkpoint", hint: "A path, a hub id, or . for the files of the version."},
  {name: "dtype", title: "Number type", options: ["", "float32", "bfloat16", "float16"], hint: "Empty: the checkpoint's."},
  {name: "quantization", title: "Quantize while loading", options: ["", "fp8", "int8", "int4"]},
  {name: "max_model_len", title: "Longest context, in tokens", type: "number", hint: "Prompt and output together. Empty: what the model was made for."},
  {name: "max_num_seqs", title: "Requests at the same time", type: "number", placeholder: "256"},
  {name: "kv_cache_bytes", title: "KV cache, in bytes", type: "number", hint: "Empty: 1 GiB on a CPU, a share of the memory on a GPU."},
  {name: "gpu_memory_utilization", title: "Share of the GPU's memory", type: "number", step: "0.01", placeholder: "0.9", needsGpus: 1, hint: "For weights, activations and KV cache together."},
  {name: "tensor_parallel_size", title: "GPUs that share the model", type: "number", min: "1", placeholder: "1", needsGpus: 2,
    hint: "Tensor parallel: each of these GPUs holds a part of every layer. For models that do not fit on one GPU. It must divide the model's attention heads."},
  {name: "trust_remote_code", title: "Run Python code that the checkpoint brings", type: "checkbox"},
];
const PROCESS_NAMES = new Set(["CPU_CORES", "MEMORY_LIMIT", "PYTHON_VERSION", "EXECUTION_ENV_PATH"]);
const VARIABLE = "ENV:";
const ENGINE_NAMES = new Set(ENGINE_FIELDS.map(field => field.name));
export const isEngine = backend => backend === "llm";
export const hasOwnTensors = backend => !["llm", "vllm", "tensorrtllm"].includes(backend);

let lastId = 0;
export const newId = () => `f${++lastId}`;

// A labelled field with room for its hint and its problem.
export function field(title, control, {hint, path} = {}) {
  const id = newId();
  control.id = id;
  if (path) control.dataset.path = path;
  if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
  return h("div", {class: "field"}, h("label", {for: id}, title), control, hint ? h("p", {class: "hint", id: `${id}-hint`}, hint) : null);
}

export function select(options, value, onchange, attributes = {}) {
  return h("select", {...attributes, onchange: event => onchange(event.target.value)},
    options.map(option => { const [key, text] = Array.isArray(option) ? option : [option, option || "as the model has it"]; return h("option", {value: key, selected: key === value}, text); }));
}

// Tensors.

export function tensorList(kind, tensors, dataTypes, changed, maxBatchSize) {
  const box = h("div"), titles = {input: "Inputs", output: "Outputs"};
  const draw = focus => {
    box.replaceChildren(h("h3", null, titles[kind]), ...tensors.map((tensor, index) => tensorRow(tensor, index)),
      h("button", {type: "button", class: "small", onclick: () => { tensors.push({name: "", data_type: "FP32", dims: [-1], optional: false}); draw(`${kind}[${tensors.length - 1}].name`); changed(); }}, `Add ${kind}`));
    if (focus) box.querySelector(`[data-path="${CSS.escape(focus)}"]`)?.focus();
  };
  function tensorRow(tensor, index) {
    const path = `${kind}[${index}]`, shown = tensor.name || `${kind} ${index + 1}`, sent = h("p", {class: "hint"});
    const showShape = () => {
      const batch = maxBatchSize() > 0 ? ["batch"] : [];
      sent.textContent = `A request ${kind === "input" ? "sends" : "gets"} the shape [${[...batch, ...tensor.dims.map(dim => dim === -1 ? "any" : dim)].join(", ")}].`;
    };
    const update = () => { showShape(); changed(); };
    const dims = h("div", {class: "dims", role: "group", "aria-label": `Dimensions of ${shown}`, "data-path": `${path}.dims`});
    const drawDims = focus => {
      dims.replaceChildren(...tensor.dims.map((dim, place) => h("span", {class: "dim"},
        h("input", {type: "number", min: "-1", value: String(dim), "aria-label": `Dimension ${place + 1} of ${shown}`, "data-path": `${path}.dims[${place}]`,
          oninput: event => { tensor.dims[place] = event.target.value === "" ? 0 : Math.trunc(Number(event.target.value)); update(); }}),
        h("button", {type: "button", class: "quiet", "aria-label": `Remove dimension ${place + 1} of ${shown}`, onclick: () => { tensor.dims.splice(place, 1); drawDims("add"); update(); }}, "×"))),
      h("button", {type: "button", class: "small", "aria-label": `Add a dimension to ${shown}`, onclick: () => { tensor.dims.push(-1); drawDims("last"); update(); }}, "+"));
      if (focus === "add") dims.lastChild.focus();
      if (focus === "last") [...dims.querySelectorAll("input")].at(-1).focus();
    };
    drawDims();
    showShape();
    const name = h("input", {value: tensor.name, spellcheck: "false", autocomplete: "off", oninput: event => { tensor.name = event.target.value; changed(); }});
    return h("div", {class: "tensor", role: "group", "aria-label": shown},
      h("div", {class: "tensor-head"},
        field("Name", name, {path: `${path}.name`}),
        field("Type", select(dataTypes, tensor.data_type, value => { tensor.data_type = value; changed(); }), {path: `${path}.data_type`}),
        h("div", {class: "field"}, h("span", {class: "label"}, "Dimensions"), dims),
        h("button", {type: "button", class: "small danger", "aria-label": `Remove ${shown}`, onclick: () => { tensors.splice(index, 1); draw(); changed(); }}, "Remove")), sent);
  }
  draw();
  return {box, draw};
}

// The Python environment.

const INDEX_LINE = /^--extra-index-url[ =]+(\S+)[ \t]*$/m;

// An extra index is a line of requirements.txt; the form shows the first one as a field of its own.
export function splitIndex(text) {
  const match = INDEX_LINE.exec(text);
  return match ? {index: match[1], packages: text.replace(INDEX_LINE, "").replace(/^\n/, "")} : {index: "", packages: text};
}

export const joinIndex = ({index, packages}) => index ? `--extra-index-url ${index}\n${packages}` : packages;

export function environmentFields(environment, parameters, offer, changed, uploadArchive) {
  const detail = h("div"), kinds = [["server", "The server's own packages"], ...(offer.can_install || environment.kind === "requirements" ? [["requirements", "More packages, by requirements.txt"]] : []), ["archive", "An archive of an environment (conda-pack)"]];
  const draw = () => {
    if (environment.kind !== "requirements") delete parameters.PYTHON_VERSION;
    if (environment.kind === "requirements") {
      const parts = splitIndex(environment.requirements), update = () => { environment.requirements = joinIndex(parts); changed(); };
      const own = parameters.PYTHON_VERSION ?? "", versions = own && !offer.pythons.includes(own) ? [...offer.pythons, own] : offer.pythons;
      detail.replaceChildren(
        field("requirements.txt", h("textarea", {class: "data", rows: "4", value: parts.packages, placeholder: "numpy==2.4.0\nscikit-learn", oninput: event => { parts.packages = event.target.value; update(); }}),
          {hint: "One package per line, as for pip. The server creates an environment with them, once for each content of the file.", path: "environment"}),
        field("Extra package index", h("input", {type: "url", value: parts.index, placeholder: "https://packages.example.com/simple", spellcheck: "false", autocomplete: "off", oninput: event => { parts.index = event.target.value.trim(); update(); }}),
          {hint: "pip looks for packages there, too. It becomes a line of requirements.txt, so a password does not belong here: the server's pip.conf is the place for it."}),
        versions.length > 1 ? field("Python version", select([["", "the server's, with its packages"], ...versions.map(version => [version, version])], own, value => { if (value) parameters.PYTHON_VERSION = value; else delete parameters.PYTHON_VERSION; changed(); }),
          {hint: "Another version does not see the server's packages: list everything that the model imports.", path: 'parameters["PYTHON_VERSION"]'}) : "");
    } else if (environment.kind === "archive") {
      const status = h("p", {class: "hint", role: "status"}, environment.archive ? `${environment.archive.split("/").at(-1)} is uploaded.` : "It is unpacked when the model is loaded, and may bring its own Python.");
      const input = h("input", {type: "file", accept: ".tar.gz,.tgz,.tar,.tar.bz2,.tar.xz", onchange: async () => {
        const file = input.files[0];
        if (!file) return;
        try {
          environment.archive = await uploadArchive(file, text => { status.textContent = text; });
          status.textContent = `${file.name} is uploaded.`;
          changed();
        } catch (error) {
          status.textContent = error.message;
        }
      }});
      detail.replaceChildren(field("Archive", input), status);
    } else detail.replaceChildren();
  };
  draw();
  return h("div", null, h("fieldset", {class: "plain choices"}, h("legend", null, "Packages of the model"),
    kinds.map(([kind, text]) => h("label", null, h("input", {type: "radio", name: "environment", value: kind, checked: environment.kind === kind,
      onchange: () => { environment.kind = kind; draw(); if (kind !== "archive" || environment.archive) changed(); }}), text))), detail);
}

// Instances and devices.

export function instanceFields(groups, gpus, changed) {
  const box = h("div");
  const kinds = [["KIND_AUTO", gpus.length ? "Automatic: GPUs" : "Automatic: CPU"], ["KIND_CPU", "CPU"], ...(gpus.length ? [["KIND_GPU", "GPU"]] : [])];
  const draw = () => {
    const more = h("button", {type: "button", class: "small", hidden: !gpus.length, onclick: () => { groups.push({count: 1, kind: "KIND_CPU", gpus: []}); draw(); changed(); }}, "Add a group on another device");
    box.replaceChildren(...groups.map((group, index) => {
      const path = `instance_group[${index}]`, options = kinds.some(([kind]) => kind === group.kind) ? kinds : [...kinds, [group.kind, group.kind]];
      return h("div", {class: "line"},
        field("Instances", h("input", {type: "number", min: "1", max: "1024", placeholder: "automatic", value: group.count ? String(group.count) : "", oninput: event => { group.count = Math.max(0, Math.trunc(Number(event.target.value) || 0)); changed(); }}), {path: `${path}.count`}),
        field("Device", select(options, group.kind, value => { group.kind = value; if (value !== "KIND_GPU") group.gpus = []; draw(); changed(); }), {path: `${path}.kind`}),
        group.kind === "KIND_GPU" ? h("fieldset", {class: "plain", "data-path": `${path}.gpus`}, h("legend", null, "GPUs; none means all"), h("div", {class: "checks"}, gpus.map(gpu => h("label", null,
          h("input", {type: "checkbox", checked: group.gpus.includes(gpu), onchange: event => { group.gpus = event.target.checked ? [...group.gpus, gpu].sort() : group.gpus.filter(other => other !== gpu); changed(); }}), `GPU ${gpu}`)))) : null,
        groups.length > 1 ? h("button", {type: "button", class: "small danger", "aria-label": `Remove group ${index + 1}`, onclick: () => { groups.splice(index, 1); draw(); changed(); }}, "Remove") : null);
    }), h("p", {class: "hint"}, "Each instance is a process of its own with a copy of the model. More instances serve more requests at once and need more memory."),
    more);
  };
  draw();
  return box;
}

// Cores, memory and environment variables of the model's processes.

export function processFields(parameters, offer, changed) {
  const set = (name, value) => { if (value === "") delete parameters[name]; else parameters[name] = value; changed(); };
  const cores = h("input", {type: "number", min: "1", max: String(offer.num_cores), placeholder: "all", value: parameters.CPU_CORES ?? "", oninput: event => set("CPU_CORES", event.target.value.trim())});
  const memory = h("input", {value: parameters.MEMORY_LIMIT ?? "", placeholder: "no limit", spellcheck: "false", autocomplete: "off", oninput: event => set("MEMORY_LIMIT", event.target.value.trim())});
  return h("div", null, h("div", {class: "pairs"},
    field("Cores of each instance", cores, {hint: `The threads of an instance run on so many of the ${offer.num_cores === 1 ? "one core" : `${offer.num_cores} cores`} that the server may use.`, path: 'parameters["CPU_CORES"]'}),
    field("Memory of each instance, at most", memory, {hint: `Such as 4GiB. An allocation beyond it fails, and the request gets an error. The machine has ${bytes(offer.memory_bytes)}. GPU memory does not count.`, path: 'parameters["MEMORY_LIMIT"]'})),
    offer.can_set_variables || Object.keys(parameters).some(name => name.startsWith(VARIABLE)) ? variableFields(parameters, changed) : null);
}

function variableFields(parameters, changed) {
  const box = h("div");
  let rows = Object.entries(parameters).filter(([name]) => name.startsWith(VARIABLE)).map(([name, value]) => ({name: name.slice(VARIABLE.length), value}));
  const apply = () => {
    for (const name of Object.keys(parameters)) if (name.startsWith(VARIABLE)) delete parameters[name];
    for (const row of rows) if (row.name) parameters[VARIABLE + row.name] = row.value;
    changed();
  };
  const draw = focus => {
    box.replaceChildren(h("h3", null, "Environment variables"), h("p", {class: "hint"}, "Variables that the model's processes see, in addition to the server's. They are written to config.pbtxt, which everybody who may read the model's configuration sees: secrets do not belong here."),
      ...rows.map((row, index) => {
        const name = h("input", {value: row.name, placeholder: "MY_OPTION", spellcheck: "false", autocomplete: "off", oninput: event => { row.name = event.target.value.trim(); name.dataset.path = variablePath(row.name); apply(); }});
        return h("div", {class: "line"}, field("Variable", name, {path: variablePath(row.name)}),
          field("Value", h("input", {value: row.value, spellcheck: "false", autocomplete: "off", "aria-label": `Value of ${row.name || `variable ${index + 1}`}`, oninput: event => { row.value = event.target.value; apply(); }})),
          h("button", {type: "button", class: "small danger", "aria-label": `Remove variable ${row.name || index + 1}`, onclick: () => { rows = rows.filter(other => other !== row); draw(); apply(); }}, "Remove"));
      }),
      h("button", {type: "button", class: "small", onclick: () => { rows.push({name: "", value: ""}); draw(true); }}, "Add a variable"));
    if (focus) box.querySelectorAll("input")[2 * rows.length - 2].focus();
  };
  draw();
  return box;
}

const variablePath = name => `parameters["${VARIABLE}${name}"]`;

// Batching.

export function batchingFields(fields, changed) {
  const detail = h("div");
  const draw = () => {
    if (!fields.batching) { detail.replaceChildren(); return; }
    detail.replaceChildren(h("div", {class: "line"},
      field("Wait for more requests, in microseconds", h("input", {type: "number", min: "0", value: String(fields.batching.max_queue_delay_microseconds), oninput: event => { fields.batching.max_queue_delay_microseconds = Math.max(0, Math.trunc(Number(event.target.value) || 0)); changed(); }}),
        {hint: "0 sends a batch as soon as an instance is free.", path: "dynamic_batching.max_queue_delay_microseconds"}),
      field("Preferred batch sizes", h("input", {value: fields.batching.preferred_batch_size.join(", "), placeholder: "none", oninput: event => { fields.batching.preferred_batch_size = event.target.value.split(/[ ,]+/).map(Number).filter(size => Number.isInteger(size) && size > 0); changed(); }}),
        {hint: "With commas between them.", path: "dynamic_batching.preferred_batch_size"})));
  };
  draw();
  const size = h("input", {type: "number", min: "0", value: String(fields.max_batch_size), oninput: event => { fields.max_batch_size = Math.max(0, Math.trunc(Number(event.target.value) || 0)); changed(); }});
  const check = h("input", {type: "checkbox", "data-path": "dynamic_batching", checked: Boolean(fields.batching), onchange: event => { fields.batching = event.target.checked ? {max_queue_delay_microseconds: 0, preferred_batch_size: []} : null; draw(); changed(); }});
  return h("div", null, field("Largest batch", size, {hint: "0: the model has no batch dimension, and the dimensions above are the whole shape.", path: "max_batch_size"}),
    fields.is_sequence ? h("p", {class: "hint"}, "The model has sequence batching, which stays as it is.") : h("div", {class: "checks"}, h("label", null, check, "Put requests of several clients into one batch")), detail);
}

// Settings of the language-model engine.

export function engineFields(parameters, gpus, changed, {hasCheckpoint = true} = {}) {
  const set = (name, value) => { if (value === "") delete parameters[name]; else parameters[name] = value; changed(); };
  return h("div", {class: "pairs"}, ENGINE_FIELDS.filter(item => (gpus.length >= (item.needsGpus ?? 0) || item.name in parameters) && (hasCheckpoint || item.name !== "checkpoint")).map(item => {
    const value = parameters[item.name] ?? "", path = `parameters["${item.name}"]`;
    if (item.type === "checkbox") return h("div", {class: "checks wide"}, h("label", null, h("input", {type: "checkbox", checked: value === "true", "data-path": path, onchange: event => set(item.name, event.target.checked ? "true" : "")}), item.title));
    const control = item.options ? select(item.options.map(option => [option, option || "automatic"]), value, text => set(item.name, text))
      : h("input", {type: item.type ?? "text", step: item.step, min: item.type === "number" ? item.min ?? "0" : null, placeholder: item.placeholder, value, spellcheck: "false", oninput: event => set(item.name, event.target.value.trim())});
    return field(item.title, control, {hint: item.hint, path});
  }));
}

// Parameters that no field of the form is for.
export function otherParameters(parameters, backend, changed) {
  const box = h("div");
  const own = name => (isEngine(backend) && ENGINE_NAMES.has(name)) || PROCESS_NAMES.has(name) || name.startsWith(VARIABLE);
  let rows = Object.entries(parameters).filter(([name]) => !own(name)).map(([name, value]) => ({name, value}));
  const apply = () => {
    for (const name of Object.keys(parameters)) if (!own(name)) delete parameters[name];
    for (const row of rows) if (row.name) parameters[row.name] = row.value;
    changed();
  };
  const draw = () => box.replaceChildren(...rows.map((row, index) => h("div", {class: "line"},
    field("Parameter", h("input", {value: row.name, spellcheck: "false", oninput: event => { row.name = event.target.value.trim(); apply(); }}), {path: `parameters["${row.name}"]`}),
    field("Value", h("input", {value: row.value, spellcheck: "false", oninput: event => { row.value = event.target.value; apply(); }})),
    h("button", {type: "button", class: "small danger", "aria-label": `Remove parameter ${row.name || index + 1}`, onclick: () => { rows = rows.filter(other => other !== row); draw(); apply(); }}, "Remove"))),
  h("button", {type: "button", class: "small", onclick: () => { rows.push({name: "", value: ""}); draw(); box.querySelectorAll("input")[2 * rows.length - 2].focus(); }}, "Add a parameter"));
  draw();
  return box;
}
