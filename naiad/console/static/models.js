// The models page: all models, and one model with its instances, actions and addresses.

import {controlPath, get, may, modelPath, post, send, session} from "./api.js";
import {accessPanel} from "./code.js";
import {ask, bytes, dash, h, milliseconds, number, problemBox, setText, toast} from "./dom.js";
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

function fact(title) {
  const value = h("span", {class: "fact-value"}, dash), note = h("span", {class: "fact-note"});
  return {box: h("div", {class: "fact"}, h("span", {class: "fact-title"}, title), value, note),
    set: (text, noteText = "") => { setText(value, text); setText(note, noteText); }};
}

const COLUMNS = ["Requests/s", "p50", "p99", "Queue", "Memory", "Instances"];

function listRow(name) {
  const state = h("span"), reason = h("span", {class: "reason", hidden: true}), platform = h("span", {class: "sub"});
  const cells = COLUMNS.map(column => h("td", {class: "number", "data-label": column}));
  const element = h("tr", null,
    h("th", {scope: "row"}, h("a", {class: "name-link", href: modelLink("models", name)}, name), platform),
    h("td", {class: "full"}, state, reason), cells);
  return {element, update(row) {
    showState(state, row);
    setText(platform, row.platform);
    reason.hidden = !row.reason_line;
    setText(reason, row.reason_line);
    const ready = row.instances.filter(instance => instance.state === "ready").length;
    const isIdle = !row.platform;
    [isIdle ? dash : number(row.rates.requests_per_s), milliseconds(row.rates.p50_ms), milliseconds(row.rates.p99_ms),
      isIdle ? dash : String(row.num_queued), bytes(row.memory_bytes),
      row.steps.length ? `${row.steps.length} steps` : isIdle ? dash : `${ready} of ${row.instances.length}`,
    ].forEach((text, index) => setText(cells[index], text));
  }};
}

function showList(root) {
  const facts = {models: fact("Models ready"), requests: fact("Requests/s"), queue: fact("Waiting"), memory: fact("Memory")};
  const search = h("input", {type: "search", placeholder: "Search models", "aria-label": "Search models", oninput: update});
  const body = h("tbody"), empty = h("div", {class: "empty", hidden: true});
  const table = h("table", {class: "stack"}, h("thead", null, h("tr", null, h("th", {scope: "col"}, "Model"), h("th", {scope: "col"}, "State"),
    COLUMNS.map(column => h("th", {scope: "col", class: "number"}, column)))), body);
  root.append(h("div", {class: "head"}, h("h1", null, "Models"), h("div", {class: "tools"}, search, may("model-repository") ? h("a", {class: "button", href: "#/deploy"}, "Deploy a model") : null)),
    h("section", {class: "facts", "aria-label": "Summary"}, Object.values(facts).map(item => item.box)),
    h("section", {class: "card table-card", "aria-label": "All models"}, h("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Models"}, table), empty));
  const rows = new Map();
  function update() {
    const all = [...live.models.values()], wanted = search.value.trim().toLowerCase();
    const found = all.filter(row => row.name.toLowerCase().includes(wanted));
    for (const name of [...rows.keys()]) {
      if (!found.some(row => row.name === name)) { rows.get(name).element.remove(); rows.delete(name); }
    }
    found.forEach((row, index) => {
      if (!rows.has(row.name)) rows.set(row.name, listRow(row.name));
      const {element, update} = rows.get(row.name);
      update(row);
      if (body.children[index] !== element) body.insertBefore(element, body.children[index] ?? null);
    });
    table.hidden = !found.length;
    empty.hidden = found.length > 0 || !live.hasData;
    if (!found.length && live.hasData) empty.replaceChildren(
      h("h2", null, all.length ? "No model matches" : "No models yet"),
      h("p", null, all.length ? "Change the text of the search." : "Deploy one: drop a file, name a hub id, or choose from the catalogue."));
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
    setText(subtitle, [row.platform, row.max_batch_size ? `batches up to ${row.max_batch_size}` : row.platform ? "no batching" : "",
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

function actionBar(name) {
  const isExplicit = session.info.control_mode === "explicit", mayControl = may("model-repository");
  const load = h("button", {type: "button", onclick: () => run(load, "Loading…", () => post(controlPath(name, "load")), {done: `${name} is loaded`})}, "Load");
  const unload = h("button", {type: "button", class: "danger", onclick: confirmUnload}, "Unload");
  const resize = h("button", {type: "button", onclick: changeCount}, "Instances…");
  const reason = !mayControl ? "Your key lacks the scope 'model-repository'" :
    isExplicit ? "" : "Start the server with --model-control-mode=explicit --load-model='*' to load and unload models here";
  const box = h("div", {class: "row", title: reason}, load, resize, unload);
  if (reason) for (const button of [load, unload, resize]) { button.disabled = true; button.title = reason; }

  async function confirmUnload() {
    const body = h("p", null, "Requests in flight are finished; new ones get an error until it is loaded again.");
    if (!await ask(`Unload ${name}?`, body, {confirm: "Unload", danger: true})) return;
    await run(unload, "Unloading…", () => post(controlPath(name, "unload")),
      {done: `${name} is unloaded`, name: "Load again", action: () => run(load, "Loading…", () => post(controlPath(name, "load")), {done: `${name} is loaded`})});
  }

  async function changeCount() {
    let config;
    try {
      config = await (await send("GET", `${modelPath(name)}/config`)).json();
    } catch (error) {
      await ask(error.title, h("pre", null, error.message), {confirm: "Close", cancel: ""});
      return;
    }
    const groups = config.instance_group?.length ? config.instance_group : [{count: 1, kind: "KIND_CPU"}];
    const now = groups[0].count || 1;
    const field = h("input", {type: "number", name: "count", min: "1", max: "64", value: String(now), required: true});
    const preview = h("pre", {class: "code", tabindex: "0"});
    const show = () => { preview.textContent = `instance_group [ { kind: ${groups[0].kind ?? "KIND_AUTO"} count: ${field.value} } ]`; };
    field.addEventListener("input", show);
    show();
    const change = async count => {
      const changed = {...config, instance_group: [{...groups[0], count}, ...groups.slice(1)]};
      await post(controlPath(name, "load"), {parameters: {config: JSON.stringify(changed)}});
    };
    const body = h("div", null, h("div", {class: "field"}, h("label", null, "Instances, each a process", field)),
      h("p", {class: "hint"}, "It holds until the model is loaded again. To keep it, write this into config.pbtxt:"), preview);
    const count = await ask(`Instances of ${name}`, body, {confirm: "Change", submit: async data => {
      await change(Number(data.get("count")));
      return Number(data.get("count"));
    }});
    if (count) toast(`${name} has ${count} instance${count > 1 ? "s" : ""}`, "Undo", count === now ? null : () => run(resize, "Changing…", () => change(now), {done: `${name} has ${now} again`}));
  }

  return {box, update(row) {
    if (load.textContent.endsWith("…")) return;  // a load is under way
    const isReady = row.state === "READY";
    setText(load, isReady ? "Reload" : "Load");
    unload.hidden = !isReady;
    resize.hidden = !isReady || row.instances.length === 0;
  }};
}
