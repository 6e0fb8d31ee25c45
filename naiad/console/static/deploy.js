// The deploy page: a form in the order a person thinks, and next to it what it will write.
// The form lives in `form` while the page is closed or the server is away, so nothing that was filled in is lost.

import {base, get, may, post, send, session} from "./api.js";
import {ask, bytes, copy, h, problemBox, setText, tabs} from "./dom.js";
import {batchingFields, engineFields, environmentFields, field, hasOwnTensors, instanceFields, isEngine, otherParameters, processFields, select, tensorList} from "./deploy_fields.js";
import {diffView} from "./diff.js";
import {runDeployment} from "./deploy_progress.js";
import {listen, live} from "./live.js";
import {deploymentText, emptyPlacement, placementFields} from "./placement.js";
import {chosenFiles, discardDraft, droppedFiles, newDraft, uploadFile} from "./upload.js";

const PREVIEW_MS = 300;
const SOURCES = [["files", "Files"], ["checkpoint", "Folder on the server"], ["hub", "Hugging Face hub"], ["catalogue", "Catalogue"], ["repository", "In the repository"]];
const BACKEND_TITLES = {onnxruntime: "ONNX", pytorch: "PyTorch", openvino: "OpenVINO", python: "Python", llm: "language model", ensemble: "ensemble"};
const modelApi = (name, verb) => `/console/api/models/${encodeURIComponent(name)}/${verb}`;

await new Promise(resolve => {
  const link = h("link", {rel: "stylesheet", href: `${base}/console/static/deploy.css`, onload: resolve, onerror: resolve});
  document.head.append(link);
});

let info = null, form = null;

function emptyForm() {
  return {isEdit: false, source: {kind: "files", value: ""}, uploads: [], draft: "", found: null, name: "", isNamed: false, version: 1, repository: "",
    fields: null, written: null, environment: {kind: "server", requirements: "", archive: ""}, isEnvironmentSet: false, text: null, base: "", existing: null, preview: null,
    example: {shape: "", data_type: "FP32"}, keys: new Map(), isManual: false};
}

const copyOf = value => JSON.parse(JSON.stringify(value));

// What the form says as the body of a request.
function buildSpec() {
  const fields = form.fields, before = form.written, spec = {source: form.source, version: Number(form.version) || 1, repository: form.repository};
  if (form.base) spec.base = form.base;
  if (form.isEnvironmentSet) spec.environment = form.environment.kind === "server" ? {kind: "server"} : form.environment.kind === "requirements" ?
    {kind: "requirements", requirements: form.environment.requirements} : {kind: "archive", archive: form.environment.archive};
  if (form.text !== null) return {...spec, text: form.text};
  if (!fields || addsVersion()) return spec;
  const isChanged = key => !before || JSON.stringify(fields[key]) !== JSON.stringify(before[key]);
  if (fields.backend && fields.backend !== "ensemble" && !form.isEdit) spec.backend = fields.backend;
  if (hasOwnTensors(fields.backend)) {
    if (isChanged("max_batch_size")) spec.max_batch_size = fields.max_batch_size;
    for (const key of ["inputs", "outputs"]) if (isChanged(key) && (fields[key].length || before)) spec[key] = fields[key];
    if (isChanged("batching") && !fields.is_sequence) spec.batching = fields.batching ?? (before?.batching ? false : null);
  }
  const isDefault = fields.instances.length === 1 && !fields.instances[0].count && fields.instances[0].kind === "KIND_AUTO" && !(before?.instances.length);
  if (isChanged("instances") && !isDefault) spec.instances = fields.instances;
  if (isChanged("parameters")) spec.parameters = fields.parameters;
  return spec;
}

// Files for a model that exists become a new version of it; its config stays.
// A file that does not record shapes is read with an example first, unless the person knows them.
const isManual = () => form.isEdit || form.isManual || form.text !== null || !form.found?.needs_example || Boolean(form.fields?.inputs.length);

// What the text says goes into the fields.
function textSection(changed, redraw) {
  const editor = h("textarea", {class: "data config-text", rows: "22", spellcheck: "false", "aria-label": "Text of config.pbtxt", value: form.text, oninput: event => { form.text = event.target.value; changed(); }});
  const back = async () => {
    let preview;
    try { preview = await post(modelApi(form.name, "preview"), buildSpec()); } catch (error) { preview = null; }
    if (!preview?.config) { await ask("The text cannot be read", h("p", null, "Correct the problems that are listed next to the form, then go back to the fields."), {confirm: "Close", cancel: ""}); return; }
    backToFields(preview.config);
    redraw();
  };
  return [editor, h("button", {type: "button", onclick: back}, "Back to the fields")];
}

const addsVersion = () => !form.isEdit && form.existing !== null;

function useConfig(view, isWritten) {
  const fields = copyOf(view);
  form.written = isWritten ? copyOf(view) : null;
  if (!fields.instances.length) fields.instances = [{count: 0, kind: "KIND_AUTO", gpus: []}];
  if (form.written && !form.written.instances.length) form.written.instances = copyOf(fields.instances);
  form.fields = fields;
}

export function show(root, name) {
  let isOpen = true;
  const stop = [() => { isOpen = false; }];
  const body = h("div");
  root.append(body);
  start();
  return () => stop.forEach(action => action());

  async function start() {
    if (!may("model-repository")) {
      body.replaceChildren(h("h1", null, "Deploy"), h("section", {class: "card empty"}, h("h2", null, "Your key may not deploy models"), h("p", null, "Sign in with a key that has the scope 'model-repository'.")));
      return;
    }
    try {
      info = await get("/console/api/deploy");
      if (name) {
        if (!form?.isEdit || form.name !== name) form = await loadExisting(name);
      } else if (!form || form.isEdit) form = emptyForm();
    } catch (error) {
      body.replaceChildren(h("h1", null, "Deploy"), problemBox(error));
      return;
    }
    if (!isOpen) return;
    if (!info.is_allowed) {
      body.replaceChildren(h("h1", null, "Deploy"), h("section", {class: "card empty"}, h("h2", null, "Nothing can be deployed here"), h("p", null, info.reason)));
      return;
    }
    stop.push(drawPage(body));
  }
}

async function loadExisting(name) {
  const existing = await get(modelApi(name, "form")), edited = emptyForm();
  Object.assign(edited, {isEdit: true, source: {kind: "repository", value: name}, name, base: existing.base, existing, repository: existing.repository, version: existing.versions.at(-1) ?? 1,
    environment: {kind: existing.config?.parameters.EXECUTION_ENV_PATH ? "archive" : existing.requirements || existing.config?.parameters.PYTHON_VERSION ? "requirements" : "server", requirements: existing.requirements, archive: ""}});
  form = edited;
  if (existing.config) useConfig(existing.config, true);
  else edited.text = existing.text;
  return edited;
}

function drawPage(root) {
  const left = h("div", {class: "deploy-form"}), right = h("aside", {class: "deploy-side", "aria-label": "What will be written"}), progress = h("div");
  const title = form.isEdit ? `Edit ${form.name}` : "Deploy a model";
  const again = h("button", {type: "button", onclick: startOver}, form.isEdit ? "Discard changes" : "Start over");
  const temporary = info.places.every(place => place.is_temporary || !place.is_writable);
  root.replaceChildren(...(form.isEdit ? [h("a", {class: "back", href: `#/models/${encodeURIComponent(form.name)}`}, `← ${form.name}`)] : []),
    h("div", {class: "head"}, h("h1", null, title), h("div", {class: "tools"}, again)),
    ...(temporary ? [h("p", {class: "note"}, "The server was started with --model only. What is deployed is gone when it stops. Start it with --model-repository FOLDER to keep it.")] : []),
    h("div", {class: "deploy"}, left, right));
  const side = sidePanel(right, progress, deploy);
  let timer = 0, number = 0, wasConnected = live.isConnected;

  function startOver() {
    if (form.draft) discardDraft(form.draft);
    const {isEdit, name} = form;
    form = null;
    root.replaceChildren();
    if (isEdit) loadExisting(name).then(() => drawPage(root), error => root.replaceChildren(problemBox(error)));
    else { form = emptyForm(); drawPage(root); }
  }

  function changed() {
    form.drawPlacement?.();
    clearTimeout(timer);
    timer = setTimeout(refresh, PREVIEW_MS);
  }

  async function refresh() {
    const mine = ++number;
    const isReady = form.name && (form.found || form.isEdit);
    if (!isReady) { form.preview = null; side.show(null); return; }
    try {
      const preview = await post(modelApi(form.name, "preview"), buildSpec());
      if (mine !== number) return;
      form.preview = preview;
      side.show(preview);
      markProblems(left, preview.problems);
    } catch (error) {
      if (mine !== number) return;
      form.preview = null;
      side.refuse(error);
      markProblems(left, fieldOfMessage(error.message));
    }
  }

  async function deploy() {
    side.setBusy(true);
    const status = await runDeployment(progress, form.name, buildSpec());
    side.setBusy(false);
    if (status.state !== "done") { markProblems(left, status.problems); return; }
    const name = form.name;
    await applyKeys();
    const isEdit = form.isEdit;
    form = null;
    progress.firstChild.append(h("div", {class: "row next"}, h("a", {class: "button primary", href: `#/playground/${encodeURIComponent(name)}`}, "Try it in the playground"),
      h("a", {class: "button", href: `#/models/${encodeURIComponent(name)}`}, "Address and state"), isEdit ? null : h("a", {class: "button", href: "#/deploy", onclick: event => { event.preventDefault(); form = emptyForm(); drawPage(root); }}, "Deploy another")));
    left.inert = true;
    left.classList.add("done");
    side.finish();
    progress.querySelector("a").focus();
  }

  async function applyKeys() {
    for (const [key, models] of form.keys) {
      try { await post("/key/update", {key, models}); } catch (error) { await ask(error.title, h("pre", null, error.message), {confirm: "Close", cancel: ""}); }
    }
  }

  function drawSections() {
    const sections = [];
    const add = (heading, note, ...content) => sections.push(h("section", {class: "card", "aria-label": heading}, h("h2", null, `${sections.length + 1}. ${heading}`), note ? h("p", {class: "card-note"}, note) : null, content));
    if (!form.isEdit) add("Where the model comes from", "", sourceSection(drawSections, changed));
    if (form.found && !form.isEdit) add("What was found", "", foundSection(drawSections));
    if (form.found || form.isEdit) {
      if (isManual()) add("Name and version", "", nameSection(drawSections, changed));
      if (form.text !== null) add("Configuration", "Every field of config.pbtxt.", textSection(changed, drawSections));
      else if (!isManual()) sections.push(h("button", {type: "button", onclick: () => { form.isManual = true; drawSections(); }}, "Fill in the inputs and outputs by hand"));
      else if (addsVersion()) add("Configuration", "", h("p", null, `config.pbtxt of ${form.name} stays as it is. `, h("a", {href: `#/deploy/${encodeURIComponent(form.name)}`}, "Edit it"), " if the new files need another one."));
      else if (form.fields) configSections(add, changed, drawSections);
      const keys = keySection();
      if (keys) add("Keys that may use it", "", keys);
      const placement = placementSection();
      if (placement) add("Placement", "", placement);
    }
    left.replaceChildren(...sections);
    changed();
  }

  const ignore = listen(() => {
    if (live.isConnected && !wasConnected && form) refresh();  // the server was away
    wasConnected = live.isConnected;
  });
  drawSections();
  return () => { clearTimeout(timer); ignore(); };
}

function backToFields(config) {
  useConfig(config, false);
  form.written = form.existing?.config ? copyOf(form.existing.config) : null;
  if (form.written && !form.written.instances.length) form.written.instances = [{count: 0, kind: "KIND_AUTO", gpus: []}];
  form.text = null;
}

// 1. The source.

function sourceSection(redraw, changed) {
  const panel = h("div", {class: "source-panel"});
  const choice = tabs(SOURCES.map(([, title]) => title), title => {
    const kind = SOURCES.find(([, text]) => text === title)[0];
    if (form.source.kind !== kind) { form.source = {kind, value: kind === "files" ? form.draft : ""}; const hadFound = form.found; form.found = null; if (hadFound) { redraw(); return; } }
    panel.replaceChildren(PANELS[kind](redraw, changed));
  }, "Where the model comes from");
  choice.choose(SOURCES.find(([kind]) => kind === form.source.kind)[1]);
  return h("div", null, choice.list, panel);
}

const PANELS = {files: filesPanel, checkpoint: checkpointPanel, hub: hubPanel, catalogue: cataloguePanel, repository: repositoryPanel};

async function inspect(source, problem, redraw, examples = []) {
  problem.replaceChildren(h("p", {class: "hint", role: "status"}, "Reading the model…"));
  try {
    form.found = await post("/console/api/inspect", {source, examples});
    form.source = source;
    if (form.found.config) useConfig(form.found.config, false);
    if (!form.isNamed) { form.name = form.found.name; await findExisting(); }
    redraw();
    if (!form.name) document.querySelector("[data-path=name]")?.focus();
  } catch (error) {
    problem.replaceChildren(problemBox(error));
  }
}

function filesPanel(redraw) {
  const list = h("ul", {class: "uploads"}), problem = h("div", {role: "alert"}), state = {isCancelled: false};
  const pick = h("input", {type: "file", multiple: true, class: "visually-hidden", tabindex: "-1", "aria-label": "Files of the model", onchange: () => add(chosenFiles(pick.files))});
  const folder = h("input", {type: "file", webkitdirectory: true, class: "visually-hidden", tabindex: "-1", "aria-label": "Folder of the model", onchange: () => add(chosenFiles(folder.files))});
  const drop = h("div", {class: "drop"}, h("p", null, h("strong", null, "Drop a file or a folder here")),
    h("p", {class: "hint"}, `ONNX, TorchScript (.pt), torch.export (.pt2), OpenVINO, model.py, GGUF, a Hugging Face checkpoint folder, a whole model folder, or a .zip or .tar.gz of one. Up to ${bytes(info.max_upload_bytes)}.`),
    h("div", {class: "row"}, h("button", {type: "button", onclick: () => pick.click()}, "Choose files"), h("button", {type: "button", onclick: () => folder.click()}, "Choose a folder")), pick, folder);
  drop.addEventListener("dragover", event => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", async event => {
    event.preventDefault();
    drop.classList.remove("over");
    add(await droppedFiles(event.dataTransfer));
  });
  const draw = () => list.replaceChildren(...form.uploads.map(row => row.element));

  async function add(files) {
    if (!files.length) return;
    problem.replaceChildren();
    try {
      if (form.draft && form.uploads.length === 0) { discardDraft(form.draft); form.draft = ""; }
      form.draft ||= await newDraft(form.repository);
    } catch (error) { problem.replaceChildren(problemBox(error)); return; }
    const rows = files.map(item => uploadRow(item, () => remove(item.path)));
    form.uploads = [...form.uploads.filter(row => !rows.some(other => other.path === row.path)), ...rows];
    draw();
    for (const row of rows) {
      try {
        await uploadFile(form.draft, row, info.piece_bytes, row.update, () => state.isCancelled || row.isRemoved);
        row.update(row.file.size, "");
      } catch (error) {
        row.fail(error.message);
        problem.replaceChildren(problemBox(error.status === 404 ? {...error, message: error.message, title: "The upload has expired", advice: "Start over, and drop the files again."} : error));
        form.uploads = form.uploads.filter(other => other !== row);
        return;
      }
    }
    await inspect({kind: "files", value: form.draft}, problem, redraw);
  }

  async function remove(path) {
    const row = form.uploads.find(other => other.path === path);
    if (row) row.isRemoved = true;
    form.uploads = form.uploads.filter(other => other.path !== path);
    draw();
    try {
      await send("DELETE", `/console/api/drafts/${form.draft}/file?path=${encodeURIComponent(path)}`);
      if (form.uploads.length) await inspect({kind: "files", value: form.draft}, problem, redraw);
      else { form.found = null; form.fields = null; redraw(); }
    } catch (error) { problem.replaceChildren(problemBox(error)); }
  }
  draw();
  return h("div", null, drop, list, problem);
}

function uploadRow({path, file}, onRemove) {
  const bar = h("progress", {max: String(file.size || 1), value: "0", "aria-label": `Upload of ${path}`}), text = h("span", {class: "sub"});
  const element = h("li", null, h("span", {class: "upload-name"}, path), bar, text, h("button", {type: "button", class: "quiet", "aria-label": `Remove ${path}`, onclick: onRemove}, "×"));
  return {path, file, element, isRemoved: false,
    update(received, note) { bar.value = file.size ? received : 1; bar.hidden = received >= file.size && !note; setText(text, note || (received >= file.size ? bytes(file.size) : `${bytes(received)} of ${bytes(file.size)}`)); },
    fail(message) { bar.hidden = true; element.classList.add("refused"); setText(text, `refused: ${message}`); }};
}

function textPanel(title, kind, attributes, hint, redraw) {
  const problem = h("div", {role: "alert"}), input = h("input", {value: form.source.kind === kind ? form.source.value : "", spellcheck: "false", autocomplete: "off", ...attributes});
  const submit = async event => { event.preventDefault(); if (input.value.trim()) await inspect({kind, value: input.value.trim()}, problem, redraw); };
  return h("form", {onsubmit: submit}, field(title, input, {hint}), h("button", {type: "submit"}, "Look"), problem);
}

function checkpointPanel(redraw) {
  return textPanel("Path of a checkpoint on the server", "checkpoint", {placeholder: "/models/Llama-3.2-1B-Instruct"}, "A folder with config.json and the tokenizer, or a .gguf file. It stays where it is.", redraw);
}

function hubPanel(redraw) {
  return textPanel("Id on the Hugging Face hub", "hub", {placeholder: "org/model"}, "The server downloads it when the model is loaded. HF_TOKEN of the server gives access to private models.", redraw);
}

function cataloguePanel(redraw) {
  const problem = h("div", {role: "alert"});
  return h("div", null, h("ul", {class: "catalogue"}, info.catalogue.map(item => h("li", null,
    h("div", null, h("strong", null, item.name), h("span", {class: "sub"}, `${item.description}${item.is_here ? "" : " It is downloaded first."}`)),
    h("button", {type: "button", class: "small", "aria-label": `Use ${item.name}`, onclick: () => inspect({kind: "catalogue", value: item.name}, problem, redraw)}, "Use")))), problem);
}

function repositoryPanel() {
  const names = [...live.models.keys()].sort();
  if (!names.length) return h("p", {class: "card-note"}, "There is no model in the repository yet.");
  let chosen = names[0];
  return h("div", null, field("Model", select(names, chosen, value => { chosen = value; }), {hint: "Opens the same form with what its config.pbtxt says."}),
    h("button", {type: "button", onclick: () => { location.hash = `#/deploy/${encodeURIComponent(chosen)}`; }}, "Open"));
}

// 2. What was found.

function foundSection(redraw) {
  const found = form.found, problem = h("div", {role: "alert"}), backend = info.backends.find(row => row.name === found.backend);
  const rows = found.files.slice(0, 8).map(file => h("li", null, h("code", null, file.path), file.path === file.target ? null : [" → ", h("code", null, file.target)], h("span", {class: "sub"}, bytes(file.size))));
  const parts = [h("p", null, "Runs with ", h("strong", null, backend?.title ?? BACKEND_TITLES[found.backend] ?? found.backend ?? "its own config"), ".",
    backend && !backend.is_installed ? h("span", {class: "reason"}, `The package for it is not installed on the server: pip install naiad[${found.backend === "onnxruntime" ? "onnx" : found.backend}]`) : null)];
  if (rows.length) parts.push(h("ul", {class: "found-files"}, rows, found.files.length > 8 ? h("li", null, `and ${found.files.length - 8} more`) : null));
  if (found.needs_example && !(found.config?.inputs.length)) {
    const shape = h("input", {value: form.example.shape, placeholder: "1, 3, 224, 224", required: true, oninput: event => { form.example.shape = event.target.value; }});
    const kind = select(info.data_types.filter(name => name !== "BYTES"), form.example.data_type, value => { form.example.data_type = value; });
    const read = async event => {
      event.preventDefault();
      const dims = form.example.shape.split(/[ ,x×]+/).filter(Boolean).map(Number);
      await inspect(form.source, problem, redraw, [{name: "", shape: dims, datatype: form.example.data_type}]);
    };
    parts.push(h("form", {onsubmit: read}, h("p", null, "This file does not record shapes. With the shape of one input, the first number being the batch, the model is run once and tells the rest."),
      h("div", {class: "line"}, field("Shape of an example input", shape, {hint: "For a grey 28 × 28 image: 1, 1, 28, 28."}), field("Type", kind), h("button", {type: "submit", class: "primary"}, "Read the model")), problem));
    if (found.note) parts.push(h("details", null, h("summary", null, "What the file said"), h("pre", null, found.note)));
  } else if (found.note) parts.push(h("p", {class: "hint"}, found.note));
  return h("div", null, parts);
}

// 3. Name and version.

async function findExisting() {
  form.existing = null;
  if (!form.name || !live.models.has(form.name)) { form.base = ""; form.version = 1; return; }
  try {
    form.existing = await get(modelApi(form.name, "form"));
    form.base = form.existing.base;
    form.version = (form.existing.versions.at(-1) ?? 0) + 1;
  } catch { form.existing = null; }
}

function nameSection(redraw, changed) {
  if (form.isEdit) return h("p", null, h("strong", null, form.name), ` in ${form.repository}, versions ${form.existing.versions.join(", ") || "none"}.`);
  const name = h("input", {value: form.name, maxlength: "63", spellcheck: "false", autocomplete: "off", pattern: "[a-z0-9]([a-z0-9-]*[a-z0-9])", oninput: async event => {
    form.name = event.target.value.trim();
    form.isNamed = true;
    const before = form.existing;
    await findExisting();
    if (before !== form.existing) { redraw(); const again = document.querySelector('[data-path="name"]'); again?.focus(); again?.setSelectionRange(form.name.length, form.name.length); }
    else changed();
  }});
  const version = h("input", {type: "number", min: "1", value: String(form.version), oninput: event => { form.version = event.target.value; changed(); }});
  const places = info.places.filter(place => place.is_writable);
  return h("div", null, h("div", {class: "line"}, field("Name", name, {hint: info.name_rule[0].toUpperCase() + info.name_rule.slice(1) + ".", path: "name"}), field("Version", version, {path: "version"})),
    form.existing ? h("p", {class: "note"}, `${form.name} exists: this becomes version ${form.version} of it.`) : null,
    places.length > 1 ? field("Repository", select(places.map(place => [place.location, place.is_temporary ? `${place.location} (until the server stops)` : place.location]),
      form.repository || (places.find(place => !place.is_temporary) ?? places[0]).location, value => { form.repository = value; changed(); })) : null);
}

// 4. to 7. The configuration.

function configSections(add, changed, redraw) {
  const fields = form.fields, backend = fields.backend;
  if (hasOwnTensors(backend)) {
    const isTold = form.isEdit && !fields.inputs.length && !fields.outputs.length;
    const lists = ["input", "output"].map(kind => tensorList(kind, fields[`${kind}s`], info.data_types, changed, () => fields.max_batch_size));
    form.redrawTensors = () => lists.forEach(list => list.draw());
    add("Inputs and outputs", "The first dimension of a request is the batch: how many examples it has. It is not listed here, because it may differ from request to request. −1 is a dimension of any size.",
      isTold ? h("p", {class: "hint"}, "config.pbtxt does not name them, so the model itself tells them when it is loaded. What you add here must match the model.") : null, lists.map(list => list.box));
  }
  if (backend === "python") add("Python environment", "", environmentFields(form.environment, fields.parameters, info.processes, () => { form.isEnvironmentSet = true; changed(); }, uploadArchive));
  if (isEngine(backend)) add("Engine", "Everything else is found in the checkpoint.", engineFields(fields.parameters, info.gpus, changed));
  if (backend !== "ensemble" && !fields.is_ensemble) {
    if (!isEngine(backend)) add("Instances and devices", "", instanceFields(fields.instances, info.gpus, changed));
    if (hasOwnTensors(backend)) add("Batching", "", batchingFields(fields, () => { form.redrawTensors?.(); changed(); }));
    add("Cores, memory and variables", "Each instance is a process. Empty fields leave it what the server has.", processFields(fields.parameters, info.processes, changed));
  }
  const others = otherParameters(fields.parameters, backend, changed);
  add("More", "", h("details", null, h("summary", null, "Parameters of the backend"), others),
    h("p", {class: "hint"}, "Every other field of config.pbtxt: "), h("button", {type: "button", class: "small", onclick: () => { form.text = form.preview?.text ?? form.existing?.text ?? ""; redraw(); }}, "Edit the text"));
}

async function uploadArchive(file, report) {
  form.draft ||= await newDraft(form.repository);
  const path = `environment/${file.name}`;
  await uploadFile(form.draft, {path, file}, info.piece_bytes, (received, note) => report(note || `${bytes(received)} of ${bytes(file.size)}`), () => false);
  form.isEnvironmentSet = true;
  return `${form.draft}/${path}`;
}

// 8. Keys. They are changed after the model serves, by the same request as on the Keys page.

function keySection() {
  if (!session.info.needs_key) return null;
  if (!may("keys") || !session.info.has_key_file) return h("p", {class: "hint"}, "Keys whose pattern of models matches the name may use it. To see and change them, sign in with a key that has the scope 'keys'.");
  const box = h("div", null, h("p", {class: "hint"}, "Loading the keys…"));
  get("/key/list").then(({keys}) => {
    const active = keys.filter(key => !key.blocked);
    box.replaceChildren(h("fieldset", {class: "plain"}, h("legend", null, "Tick the keys that may use the model"), h("div", {class: "checks column"}, active.map(key => {
      const already = key.models.find(pattern => matches(pattern, form.name)), isOwn = key.models.includes(form.name);
      return h("label", null, h("input", {type: "checkbox", checked: Boolean(already), disabled: Boolean(already) && !isOwn, onchange: event => {
        const models = event.target.checked ? [...key.models, form.name] : key.models.filter(model => model !== form.name);
        form.keys = new Map([...form.keys, [key.token, models]]);
      }}), `${key.key_alias} `, h("span", {class: "sub"}, already ? `by its pattern ${already}` : `may use ${key.models.join(", ")}`));
    }))));
  }, error => box.replaceChildren(problemBox(error)));
  return box;
}

const matches = (pattern, name) => new RegExp(`^${pattern.replace(/[.+^${}()|\\]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".")}$`).test(name);

// 9. Placement, where this machine is part of a cluster. The text is for the cluster file, so that Git has it, too.
function placementSection() {
  if (!info.is_in_cluster) return null;
  form.placement ??= emptyPlacement();
  const code = h("pre", {class: "code", tabindex: "0", role: "region", "aria-label": "Entry of the cluster file"});
  const copyButton = h("button", {type: "button", class: "small", onclick: () => copy(code.textContent, copyButton)}, "Copy");
  const place = () => form.repository || (info.places.find(one => one.is_writable && !one.is_temporary) ?? info.places[0]).location;
  form.drawPlacement = () => setText(code, deploymentText(form.name || "model", place(), form.placement));
  form.drawPlacement();
  return h("div", null, placementFields(form.placement, form.drawPlacement), h("div", {class: "code-bar"}, h("h3", null, "Entry of the cluster file"), copyButton), code,
    h("p", {class: "hint"}, "Deploy writes the model to this server's repository, where you can try it. To serve it on the cluster, add this entry to the cluster file and run ", h("code", null, "naiad cluster apply FILE"), ". Every node must reach the repository at that path; a bucket works, too."));
}

// What will be written.

function sidePanel(root, progress, deploy) {
  const config = h("div"), problems = h("div", {role: "status", "aria-label": "Problems"}), memory = h("div"), command = h("pre", {class: "code", tabindex: "0", role: "region", "aria-label": "Command line"});
  const copyCommand = h("button", {type: "button", class: "small", onclick: () => copy(command.textContent, copyCommand)}, "Copy");
  const button = h("button", {type: "button", class: "primary wide", disabled: true, onclick: deploy}, form.isEdit ? "Save and load" : "Deploy");
  const why = h("p", {class: "hint"}, "Choose where the model comes from.");
  const settings = h("section", {class: "card", "aria-label": "config.pbtxt"}, h("h2", null, "config.pbtxt"), config);
  const commandCard = h("section", {class: "card", hidden: true}, h("div", {class: "code-bar"}, h("h2", null, "The same as a command line"), copyCommand), command);
  const memoryCard = h("section", {class: "card", "aria-label": "Memory", hidden: true}, h("h2", null, "Memory, estimated"), memory);
  const actionCard = h("section", {class: "card"}, button, why);
  root.replaceChildren(actionCard, progress, problems, settings, memoryCard, commandCard);
  let isBusy = false;

  function setState(isOk, text) {
    button.disabled = isBusy || !isOk;
    setText(why, text);
  }

  function showConfig(preview) {
    if (!preview) { config.replaceChildren(h("p", {class: "card-note"}, "The file that the form writes appears here.")); return; }
    if (preview.old_text === null) config.replaceChildren(h("pre", {class: "code", tabindex: "0"}, preview.text || "# Nothing: the model itself says everything."));
    else if (preview.diff) config.replaceChildren(h("p", {class: "card-note"}, "What changes:"), diffView(preview.diff, "Changes of config.pbtxt"));
    else config.replaceChildren(h("p", {class: "card-note"}, "No changes."), h("pre", {class: "code", tabindex: "0"}, preview.text || "# Nothing: the model itself says everything."));
  }

  return {
    setBusy(value) { isBusy = value; button.disabled = value; setText(button, value ? "Deploying…" : form?.isEdit ? "Save and load" : "Deploy"); },
    finish() { actionCard.hidden = true; },
    refuse(error) {
      problems.replaceChildren(problemBox(error.status === 400 ? {title: "The form is not complete", message: error.message} : error));
      setState(false, error.status === 0 ? "The server does not respond. The form stays as it is." : "The message above says what is missing.");
    },
    show(preview) {
      showConfig(preview);
      for (const card of [memoryCard, commandCard]) card.hidden = !preview;
      problems.replaceChildren(preview?.problems.length ? problemList(preview.problems) : "");
      if (!preview) { setState(false, form.found ? "Give the model a name." : "Choose where the model comes from."); return; }
      setText(command, preview.command);
      memoryCard.hidden = !preview.memory;
      if (preview.memory) memory.replaceChildren(memoryView(preview.memory));
      const errors = preview.problems.filter(problem => problem.severity === "error").length;
      const isSame = form.isEdit && preview.old_text === preview.text && !form.isEnvironmentSet;
      setState(!errors && !isSame, errors ? `${errors === 1 ? "One problem keeps" : `${errors} problems keep`} the model from loading.` : isSame ? "Nothing has changed." :
        preview.is_new ? `Writes ${form.name} to the repository and loads it. If it does not load, nothing stays.` : "Writes the change and loads it. If it does not load, the old one goes on serving.");
    },
  };
}

function memoryView(estimate) {
  const isEnough = estimate.total_bytes <= estimate.free_bytes;
  return h("div", null, h("p", {class: isEnough ? "" : "reason"}, h("strong", null, `about ${bytes(estimate.total_bytes)}`), ` of ${bytes(estimate.free_bytes)} that are free${isEnough ? "" : ": it will not fit"}`),
    h("p", {class: "hint"}, `${estimate.num_instances === 1 ? "One instance" : `${estimate.num_instances} instances, each`}: ${estimate.parts.map(part => `${bytes(part.num_bytes)} ${part.title}`).join(" + ")}.${estimate.note ? ` ${estimate.note}` : ""}`));
}

// Problems.

function problemList(problems) {
  return h("section", {class: "card", "aria-label": "Problems"}, h("h2", null, "Problems that naiad check finds"), h("ul", {class: "problems"}, problems.map(problem => {
    const target = () => fieldFor(document, problem.path);
    return h("li", {class: problem.severity}, h("p", null, h("strong", null, problem.severity === "error" ? "Error" : "Warning"), " ", h("span", {class: "sub-inline"}, problem.line ? `${problem.file.split("/").at(-1)}:${problem.line}` : ""), h("br"), problem.message),
      problem.fix || problem.expected ? h("p", {class: "hint"}, problem.fix || `Expected: ${problem.expected}`) : null,
      problem.path && target() ? h("button", {type: "button", class: "small", onclick: () => { const element = target(); (element?.matches("input,select,textarea") ? element : element?.querySelector("input,button"))?.focus(); }}, "Go to the field") : null);
  })));
}

// The element of a field, or of the innermost field around it.
function fieldFor(root, path) {
  while (path) {
    const element = root.querySelector(`[data-path="${CSS.escape(path)}"]`);
    if (element) return element;
    const shorter = path.replace(/(\.[^.[\]"]+|\[\d+\]|\["(?:[^"\\]|\\.)*"\])$/, "");
    path = shorter === path ? "" : shorter;
  }
  return null;
}

// "name: 'A' is not a name": a message that begins with a field belongs to it.
function fieldOfMessage(message) {
  const match = /^([a-z_]+(?:\[\d+\])?(?:\.[a-z_]+)?): /.exec(message);
  return match ? [{severity: "error", path: match[1], message: message.slice(match[0].length)}] : [];
}

function markProblems(root, problems) {
  root.querySelectorAll(".field-problem").forEach(element => element.remove());
  root.querySelectorAll("[aria-invalid]").forEach(element => element.removeAttribute("aria-invalid"));
  for (const problem of problems) {
    const element = fieldFor(root, problem.path);
    if (!element) continue;
    if (problem.severity === "error" && element.matches("input,select,textarea")) element.setAttribute("aria-invalid", "true");
    const place = element.closest(".field") ?? element.parentElement;
    place.append(h("p", {class: `field-problem ${problem.severity}`}, problem.message));
  }
}
