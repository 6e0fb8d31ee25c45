// The models page: all models, and one model with its instances, actions and addresses.

import {base, get, may, modelPath, post, session} from "./api.js";
import {accessPanel} from "./code.js";
import {ask, bytes, copy, dash, duration, fact, h, milliseconds, number, problemBox, setText, tabs, toast} from "./dom.js";
import {ensembleGraph} from "./graph.js";
import {listen, live} from "./live.js";

export function show(root, name) {
  return name ? showModel(root, name) : showList(root);
}

export const modelLink = (page, name) => `#/${page}/${encodeURIComponent(name)}`;

function stateOf(row) {
  if (row.state === "READY") return ["ready", "Ready"];
  if (row.state === "LOADING") return ["loading", "Loading"];
  if (row.state === "UNLOADING") return ["loading", "Unloading"];
  if (row.reason) return ["failed", "Failed"];
  return ["", "Not loaded"];
}

function showState(element, row) {
  const [kind, text] = stateOf(row);
  element.className = `state ${kind}`;
  setText(element, text);
}

const total = (rows, read) => rows.reduce((sum, row) => sum + (read(row) ?? 0), 0);

// The list.

const instanceText = row => row.steps.length ? `${row.steps.length} steps` : row.platform ? `${row.instances.filter(instance => instance.state === "ready").length} of ${row.instances.length}` : dash;
export const address = row => `${location.origin}${base}${row.is_language ? "/v1/chat/completions" : `/v2/models/${encodeURIComponent(row.name)}/infer`}`;

function addressCell(row) {
  const text = address(row), button = h("button", {type: "button", class: "small", "aria-label": `Copy the address of ${row.name}`, onclick: () => copy(text, button)}, "Copy");
  return h("div", {class: "row"}, h("code", {class: "address"}, text.replace(location.origin, "")), button);
}

const VIEWS = {
  Activity: {
    columns: [["Requests/s", "number"], ["p50", "number"], ["p99", "number"], ["Queue", "number"], ["Memory", "number"], ["Instances", "number"]],
    read: row => [row.platform ? number(row.rates.requests_per_s) : dash, milliseconds(row.rates.p50_ms), milliseconds(row.rates.p99_ms),
      row.platform ? String(row.num_queued) : dash, bytes(row.memory_bytes), instanceText(row)],
  },
  Services: {
    columns: [["Address", "text address-cell"], ["Authentication", "text"], ["Location", "text wrap"], ["Updated", "text"], ["Instances", "number"]],
    read: row => [row.state === "READY" ? {key: address(row), build: () => addressCell(row)} : dash, session.info.needs_key ? "API key" : "none, this machine only",
      row.location ? `${row.location}/${row.name}` : dash, row.loaded_at_s ? `${duration(Math.max(0, live.timeS - row.loaded_at_s))} ago` : dash, instanceText(row)],
  },
};

function listRow(name, view) {
  const state = h("span"), reason = h("span", {class: "reason", hidden: true}), platform = h("span", {class: "sub"});
  const cells = view.columns.map(([title, kind]) => h("td", {class: kind, "data-label": title}));
  const element = h("tr", null,
    h("th", {scope: "row"}, h("a", {class: "name-link", href: modelLink("models", name)}, name), platform),
    h("td", {class: "full"}, state, reason), cells);
  return {element, update(row) {
    showState(state, row);
    setText(platform, row.platform);
    reason.hidden = !row.reason_line;
    setText(reason, row.reason_line);
    view.read(row).forEach((value, index) => {
      if (typeof value === "string") setText(cells[index], value);
      else if (cells[index].dataset.key !== value.key) { cells[index].dataset.key = value.key; cells[index].replaceChildren(value.build()); }
    });
  }};
}

const PAGE_SIZE = 25;
const STATES = [["", "Every state"], ["ready", "Ready"], ["loading", "Loading"], ["failed", "Failed"], ["none", "Not loaded"]];

function showList(root) {
  const facts = {models: fact("Models ready"), requests: fact("Requests/s"), queue: fact("Waiting"), memory: fact("Memory")};
  const search = h("input", {type: "search", placeholder: "Search models", "aria-label": "Search models", oninput: restart});
  const state = h("select", {"aria-label": "State", onchange: restart}, STATES.map(([value, text]) => h("option", {value}, text)));
  const framework = h("select", {"aria-label": "Framework", onchange: restart}, h("option", {value: ""}, "Every framework"));
  const head = h("tr"), body = h("tbody"), empty = h("div", {class: "empty", hidden: true});
  const table = h("table", {class: "stack"}, h("thead", null, head), body);
  const shown = h("span", {class: "sub"}), previous = h("button", {type: "button", class: "small", onclick: () => { page--; update(); }}, "Previous"), next = h("button", {type: "button", class: "small", onclick: () => { page++; update(); }}, "Next");
  const paging = h("div", {class: "row paging", hidden: true}, previous, shown, next);
  const views = tabs(Object.keys(VIEWS), name => { view = VIEWS[name]; localStorage.setItem("naiad-models-view", name); redraw(); }, "Columns");
  root.append(h("div", {class: "head"}, h("h1", null, "Models"), h("div", {class: "tools"}, search, state, framework, may("model-repository") ? h("a", {class: "button primary", href: "#/deploy"}, "Deploy a model") : null)),
    h("section", {class: "facts", "aria-label": "Summary"}, Object.values(facts).map(item => item.box)), views.list,
    h("section", {class: "card table-card", "aria-label": "All models"}, h("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Models"}, table), empty, paging));
  const rows = new Map();
  let view, page = 0, names = "";
  views.choose(localStorage.getItem("naiad-models-view") in VIEWS ? localStorage.getItem("naiad-models-view") : "Activity");

  function redraw() {
    rows.clear();
    body.replaceChildren();
    head.replaceChildren(h("th", {scope: "col"}, "Model"), h("th", {scope: "col"}, "State"), ...view.columns.map(([title, kind]) => h("th", {scope: "col", class: kind}, title)));
    if (live.hasData) update();
  }

  function restart() {
    page = 0;
    update();
  }

  function fillFrameworks(all) {
    const found = [...new Set(all.map(row => row.platform).filter(Boolean))].sort();
    if (found.join() === names) return;
    names = found.join();
    const chosen = framework.value;
    framework.replaceChildren(h("option", {value: ""}, "Every framework"), ...found.map(value => h("option", {value, selected: value === chosen}, value)));
  }

  function update() {
    const all = [...live.models.values()], wanted = search.value.trim().toLowerCase();
    fillFrameworks(all);
    const found = all.filter(row => row.name.toLowerCase().includes(wanted) && (!framework.value || row.platform === framework.value) && (!state.value || (stateOf(row)[0] || "none") === state.value));
    const numPages = Math.max(1, Math.ceil(found.length / PAGE_SIZE));
    page = Math.min(Math.max(page, 0), numPages - 1);
    const here = found.slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE);
    for (const name of [...rows.keys()]) {
      if (!here.some(row => row.name === name)) { rows.get(name).element.remove(); rows.delete(name); }
    }
    here.forEach((row, index) => {
      if (!rows.has(row.name)) rows.set(row.name, listRow(row.name, view));
      const {element, update} = rows.get(row.name);
      update(row);
      if (body.children[index] !== element) body.insertBefore(element, body.children[index] ?? null);
    });
    paging.hidden = numPages === 1;
    setText(shown, `${page * PAGE_SIZE + 1} to ${page * PAGE_SIZE + here.length} of ${found.length}`);
    previous.disabled = page === 0;
    next.disabled = page === numPages - 1;
    table.hidden = !found.length;
    empty.hidden = found.length > 0 || !live.hasData;
    if (!found.length && live.hasData) empty.replaceChildren(
      h("h2", null, all.length ? "No model matches" : "No models yet"),
      h("p", null, all.length ? "Change the text of the search or the filters." : "Deploy one: drop a file, name a hub id, or choose from the catalogue."),
      all.length ? "" : h("a", {class: "button", href: "#/deploy"}, "Deploy a model"));
    const ready = all.filter(row => row.state === "READY").length, failed = all.filter(row => stateOf(row)[0] === "failed").length;
    facts.models.set(`${ready} of ${all.length}`, failed ? `${failed} failed` : "");
    facts.requests.set(number(total(all, row => row.rates.requests_per_s)), "last 5 seconds");
    facts.queue.set(String(total(all, row => row.num_queued)), "requests in queues");
    facts.memory.set(bytes(total(all, row => row.memory_bytes)), `and ${bytes(live.server?.memory_bytes)} in the server`);
  }
  return listen(update);
}

// One model.

function showModel(root, name) {
  const state = h("span"), subtitle = h("p", {class: "subtitle"}), problem = h("div", {"aria-live": "polite"});
  const facts = Object.fromEntries([["requests", "Requests/s"], ["p50", "p50"], ["p99", "p99"], ["queue", "Queue"], ["batch", "Batch size"], ["memory", "Memory"]]
    .map(([id, title]) => [id, fact(title)]));
  const actions = actionBar(name);
  const tryIt = h("a", {class: "button", href: modelLink("playground", name)}, "Try it");
  const instances = h("tbody"), versions = h("tbody"), graph = h("div");
  const instanceCard = h("section", {class: "card"}, h("h2", null, "Instances"), h("p", {class: "card-note"}, "Each is a process of its own."),
    h("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Instances"}, h("table", null, h("thead", null, h("tr", null,
      ["Instance", "State", "Device", "Process", "In flight", "CPU", "Memory"].map((text, index) => h("th", {scope: "col", class: index > 2 ? "number" : "text"}, text)))), instances)));
  const graphCard = h("section", {class: "card", hidden: true}, h("h2", null, "Ensemble"), h("p", {class: "card-note"}, "How tensors flow through the steps."), graph);
  const versionCard = h("section", {class: "card"}, h("h2", null, "Versions"), h("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Versions"},
    h("table", null, h("thead", null, h("tr", null, ["Version", "State", "Reason"].map(text => h("th", {scope: "col"}, text)))), versions)));
  const access = h("section", {class: "card"});
  const summary = h("section", {class: "facts many", "aria-label": "Summary"}, Object.values(facts).map(item => item.box));
  root.append(h("a", {class: "back", href: "#/models"}, "← All models"),
    h("div", {class: "head"}, h("div", null, h("h1", null, name), h("div", {class: "row"}, state, subtitle)),
      h("div", {class: "tools"}, tryIt, h("a", {class: "button", href: modelLink("watch", name)}, "Watch"), may("model-repository") ? h("a", {class: "button", href: modelLink("deploy", name)}, "Edit") : null, actions.box)),
    problem, summary, graphCard, instanceCard, versionCard, access);
  let accessState = null, graphText = "";

  async function loadAccess(row) {
    if (accessState === row.state) return;
    accessState = row.state;
    access.hidden = row.state !== "READY";
    if (access.hidden) return;
    try {
      const metadata = await get(modelPath(name));
      access.replaceChildren(h("h2", null, "Access"), h("p", {class: "card-note"}, "Requests that work when pasted."), accessPanel(row, metadata));
    } catch (error) {
      access.replaceChildren(h("h2", null, "Access"), problemBox(error));
    }
  }

  function update() {
    const row = live.models.get(name);
    if (!row) {
      problem.replaceChildren(live.hasData ? problemBox({title: "There is no such model", message: name, advice: "It was removed, or the key may not see it."}) : "");
      return;
    }
    showState(state, row);
    setText(subtitle, [row.platform, row.engine, row.max_batch_size ? `batches up to ${row.max_batch_size}` : row.platform ? "no batching" : "",
      row.load_s ? `loaded in ${number(row.load_s, 2)} s` : "", row.num_restarts ? `${row.num_restarts} worker restarts` : ""].filter(Boolean).join(" · "));
    summary.hidden = !row.platform;
    const key = row.reason;
    if (problem.dataset.key !== key) {
      problem.dataset.key = key;
      problem.replaceChildren(row.reason ? problemBox({title: row.state === "READY" ? "The last load of a version failed" : "The model did not load", advice: row.reason.includes("\n") ? row.reason_line : "", message: row.reason}) : "");
    }
    facts.requests.set(number(row.rates.requests_per_s), `${row.num_succeeded.toLocaleString("en")} since the load`);
    facts.p50.set(milliseconds(row.rates.p50_ms), "last 5 seconds");
    facts.p99.set(milliseconds(row.rates.p99_ms), "estimated from buckets");
    facts.queue.set(row.platform ? String(row.num_queued) : dash, row.num_failed ? `${row.num_failed.toLocaleString("en")} failed` : "");
    facts.batch.set(number(row.rates.batch_size), row.is_language ? `${number(row.rates.output_tokens_per_s)} tokens/s` : "on average");
    facts.memory.set(bytes(row.memory_bytes), row.kv_cache_usage === null ? "" : `KV cache ${Math.round(row.kv_cache_usage * 100)}%`);
    instanceCard.hidden = !row.instances.length;
    fillTable(instances, row.instances.map(item => [item.name, item.state, item.device, item.pid ? String(item.pid) : dash, String(item.inflight),
      item.cpu === null ? dash : `${Math.round(item.cpu * 100)}%`, bytes(item.memory_bytes)]), 3);
    versionCard.hidden = !row.versions.length;
    fillTable(versions, row.versions.map(item => [String(item.version), item.state, item.reason.split("\n")[0]]), 3);
    graphCard.hidden = !row.steps.length;
    const text = JSON.stringify(row.steps);
    if (row.steps.length && text !== graphText) graph.replaceChildren(ensembleGraph(row));
    graphText = text;
    tryIt.hidden = row.state !== "READY";
    actions.update(row);
    loadAccess(row);
  }
  return listen(update);
}

// Changes only the cells that are different, so that a selection and the focus stay.
function fillTable(body, rows, numTextColumns) {
  while (body.children.length > rows.length) body.lastChild.remove();
  rows.forEach((cells, index) => {
    if (!body.children[index]) body.append(h("tr", null, cells.map((_, column) => h("td", {class: column < numTextColumns ? "text wrap" : "number"}))));
    cells.forEach((text, column) => setText(body.children[index].children[column], text));
  });
}

// Actions.

async function run(button, text, work, undo) {
  const before = button.textContent;
  button.disabled = true;
  button.textContent = text;
  try {
    await work();
    toast(undo.done, undo.name, undo.action);
  } catch (error) {
    await ask(error.title ?? "It did not work", h("div", null, h("p", null, error.advice ?? ""), h("pre", null, error.message)), {confirm: "Close", cancel: ""});
  }
  button.textContent = before;
  button.disabled = false;
}

const modelApi = (name, verb) => `/console/api/models/${encodeURIComponent(name)}/${verb}`;

function actionBar(name) {
  const isExplicit = session.info.control_mode === "explicit", mayControl = may("model-repository");
  const loadIt = () => run(load, "Loading…", () => post(modelApi(name, "load")), {done: `${name} is loaded`});
  const load = h("button", {type: "button", onclick: loadIt}, "Load");
  const unload = h("button", {type: "button", class: "danger", onclick: confirmUnload}, "Unload");
  const resize = h("button", {type: "button", onclick: changeCount}, "Instances…");
  const reason = mayControl ? "" : "Your key lacks the scope 'model-repository'";
  const box = h("div", {class: "row", title: reason}, load, resize, unload);
  if (reason) for (const button of [load, unload, resize]) { button.disabled = true; button.title = reason; }

  async function confirmUnload() {
    const until = isExplicit ? "until it is loaded again" : "until it is loaded again, here or by the next start of the server";
    const body = h("p", null, `Requests in flight are finished; new ones get an error ${until}.`);
    if (!await ask(`Unload ${name}?`, body, {confirm: "Unload", danger: true})) return;
    await run(unload, "Unloading…", () => post(modelApi(name, "unload")), {done: `${name} is unloaded`, name: "Load again", action: loadIt});
  }

  // The number of instances is a line of config.pbtxt, so that it stays.
  async function changeCount() {
    let form;
    try {
      form = await get(modelApi(name, "form"));
      if (!form.config) throw {title: "config.pbtxt cannot be read", message: form.problem};
    } catch (error) {
      await ask(error.title ?? "It did not work", h("pre", null, error.message), {confirm: "Close", cancel: ""});
      return;
    }
    const groups = form.config.instances.length ? form.config.instances : [{count: 0, kind: "KIND_AUTO", gpus: []}];
    const now = live.models.get(name)?.instances.length || groups[0].count || 1;
    const spec = count => ({source: {kind: "repository", value: name}, instances: [{...groups[0], count}, ...groups.slice(1)]});
    const field = h("input", {type: "number", name: "count", min: "1", max: "1024", value: String(groups[0].count || now), required: true});
    const preview = h("pre", {class: "code", tabindex: "0"});
    const show = async () => {
      try { preview.textContent = (await post(modelApi(name, "preview"), spec(Number(field.value) || 1))).diff || "No change."; }
      catch (error) { preview.textContent = error.message; }
    };
    field.addEventListener("input", show);
    show();
    const change = async body => {
      let status = await post(modelApi(name, "deploy"), body);
      while (status.state === "running") {
        await new Promise(resolve => setTimeout(resolve, 300));
        status = await get(modelApi(name, "deploy"));
      }
      if (status.state === "failed") throw {title: status.reason_line, advice: "Everything is as it was before.", message: status.error};
    };
    const body = h("div", null, h("div", {class: "field"}, h("label", null, "Instances, each a process", field)), h("p", {class: "hint"}, "This line of config.pbtxt changes:"), preview);
    const count = await ask(`Instances of ${name}`, body, {confirm: "Change", submit: async data => {
      await change({...spec(Number(data.get("count"))), base: form.base});
      return Number(data.get("count"));
    }});
    const before = {source: {kind: "repository", value: name}, text: form.text};
    if (count) toast(`${name} has ${count} instance${count > 1 ? "s" : ""}`, "Undo", count === now ? null : () => run(resize, "Changing…", () => change(before), {done: `${name} is as before`}));
  }

  return {box, update(row) {
    if (load.textContent.endsWith("…")) return;  // a load is under way
    const isReady = row.state === "READY";
    setText(load, isReady ? "Reload" : "Load");
    unload.hidden = !isReady;
    resize.hidden = !isReady || row.instances.length === 0;
  }};
}
