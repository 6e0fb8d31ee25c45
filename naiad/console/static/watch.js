// The last hour in charts, of a model, the machine or a key; traces; the end of the log.

import {get, may, post, session} from "./api.js";
import {chart} from "./chart.js";
import {bytes, clock, h, milliseconds, number, problemBox, setText, tabs} from "./dom.js";
import {listen, live} from "./live.js";
import {time, waterfall} from "./waterfall.js";

const REFRESH_S = 10, MAX_LINES = 1000;
const percent = value => value === null ? "–" : `${Math.round(value * 100)}%`;

const CHARTS = [
  ["Throughput", "Requests per second", {requests_per_s: "succeeded", failures_per_s: "failed"}, number],
  ["Latency", "From arrival to response; estimated from buckets", {p50_ms: "p50", p90_ms: "p90", p99_ms: "p99"}, milliseconds],
  ["Queue", "Requests that wait", {num_queued: "waiting"}, number],
  ["Batch size", "Inferences per execution, on average", {batch_size: "batch size"}, number],
  ["Tokens", "Tokens per second", {prompt_tokens_per_s: "prompt", output_tokens_per_s: "output"}, number, row => row.is_language],
  ["KV cache", "Part in use", {kv_cache_usage: "in use"}, percent, row => row.kv_cache_usage !== null],
  ["CPU", "Cores that the instances use; 100% is one core", {cpu: "CPU"}, percent, row => !row.steps.length],
  ["Memory", "Resident memory of the instances", {memory_bytes: "memory"}, value => value ? bytes(value) : "0", row => !row.steps.length],
];

const KEY_CHARTS = [
  ["Requests of the key", "Per second", {requests_per_s: "let in", refused_per_s: "refused"}, number],
  ["Tokens of the key", "Per second", {prompt_tokens_per_s: "prompt", output_tokens_per_s: "output"}, number],
];
const TABS = ["Model", "Machine", "Keys", "Traces"];
// Stays while the user goes from page to page.
const chosen = {tab: TABS[0], model: "", key: ""};

export function show(root, name) {
  const tools = h("div", {class: "tools watch-tools"}), area = h("div", {class: "watch-area"}), log = logTail();
  const views = {Model: modelView, Machine: machineView, Keys: keyView, Traces: traceView};
  if (name) Object.assign(chosen, {tab: TABS[0], model: name});
  let view = null;
  const {list, choose} = tabs(TABS.filter(tab => (tab !== "Keys" || session.info.needs_key) && (tab !== "Traces" || may("trace"))), tab => {
    chosen.tab = tab;
    tools.replaceChildren();
    area.replaceChildren();
    view = views[tab](area, tools);
    if (live.hasData) view();
  }, "What to watch");
  root.append(h("div", {class: "head"}, h("h1", null, "Watch"), tools), list, area, log.box);
  choose(chosen.tab);
  return listen(() => { view(); log.update(); });
}

// Returns a function that calls `work` at most every ten seconds, and never twice at a time.
function repeated(work) {
  let lastS = 0, isBusy = false;
  return async (...facts) => {
    if (isBusy || live.timeS - lastS < REFRESH_S) return;
    isBusy = true;
    await work(...facts);
    lastS = live.timeS;
    isBusy = false;
  };
}

const drawCharts = (charts, history, events = []) => charts.map(([title, note, series, format]) => chart(title, note, history.times_s,
  Object.entries(series).map(([id, text]) => ({name: text, points: history.series[id]})), format, events, live.timeS));
const emptyCard = (title, text) => h("section", {class: "card empty wide"}, h("h2", null, title), text ? h("p", null, text) : null);

function modelView(area, tools) {
  const select = h("select", {"aria-label": "Model", onchange: () => { location.hash = `#/watch/${encodeURIComponent(select.value)}`; }});
  const charts = h("div", {class: "cards"}), events = h("div");
  tools.append(select);
  area.append(charts, events);
  const refresh = repeated(async row => {
    try {
      const history = await get(`/console/api/history/${encodeURIComponent(row.name)}`);
      charts.replaceChildren(...(history.times_s.length ? drawCharts(CHARTS.filter(([, , , , isShown]) => !isShown || isShown(row)), history, history.events) :
        [emptyCard("No points yet", "The server measures every ten seconds while the model is loaded.")]));
      events.replaceChildren(history.events.length ? h("section", {class: "card"}, h("h2", null, "Loads and restarts"), h("ul", {class: "log"},
        history.events.toReversed().slice(0, 20).map(event => h("li", null, h("time", null, clock(event.time_s)), ` ${event.text}`)))) : "");
    } catch (error) {
      charts.replaceChildren(problemBox(error));
    }
  });
  return () => {
    const rows = [...live.models.values()].filter(row => row.state);
    const names = rows.map(row => row.name).join("\n");
    if (select.dataset.names !== names) {
      select.dataset.names = names;
      select.replaceChildren(...rows.map(row => h("option", {value: row.name}, row.name)));
    }
    const busiest = rows.toSorted((a, b) => b.num_succeeded - a.num_succeeded)[0];
    const row = live.models.get(chosen.model) ?? busiest;
    chosen.model ||= row?.name ?? "";
    if (!row) charts.replaceChildren(emptyCard("No models are loaded"));
    else { select.value = row.name; refresh(row); }
  };
}

function machineView(area) {
  const charts = h("div", {class: "cards"});
  area.append(charts);
  return repeated(async () => {
    try {
      const {host, memory_total_bytes: total, gpus, gpu_reason: reason} = await get("/console/api/machine");
      const size = value => value ? bytes(value) : "0";
      const hasPoints = host.times_s.length > 0;
      charts.replaceChildren(...(hasPoints ? drawCharts([["CPU", "Of all cores of the machine", {cpu: "in use"}, percent],
        ["Memory", `In use, of ${size(total)}`, {memory_bytes: "in use"}, size]], host) : [emptyCard("No points yet", "The server measures every ten seconds.")]),
      ...gpus.flatMap((gpu, index) => drawCharts([[`GPU ${index}`, gpu.uuid, {utilization: "in use"}, percent], [`GPU ${index} memory`, `In use, of ${size(gpu.memory_total_bytes)}`, {memory_bytes: "in use"}, size],
        [`GPU ${index} power`, "Watts", {power_w: "power"}, number]], gpu.points)),
      ...(reason ? [h("section", {class: "card wide", "aria-label": "GPU"}, h("h2", null, "GPU"), h("p", {class: "card-note"}, `Not shown: ${reason}.`))] : []));
    } catch (error) {
      charts.replaceChildren(problemBox(error));
    }
  });
}

function keyView(area, tools) {
  if (!may("keys")) {
    area.append(emptyCard("Your key may not see the usage of keys", "Sign in with a key that has the scope 'keys'."));
    return () => {};
  }
  const select = h("select", {"aria-label": "Key", onchange: () => { chosen.key = select.value; draw(); }}), charts = h("div", {class: "cards"});
  tools.append(select);
  area.append(charts);
  const draw = async () => {
    try {
      const {keys} = await get("/key/list");
      const rows = [...keys.map(key => [key.token, key.key_alias]), ["", "without a valid key"]];
      if (select.dataset.keys !== JSON.stringify(rows)) {
        select.dataset.keys = JSON.stringify(rows);
        select.replaceChildren(...rows.map(([id, text]) => h("option", {value: id}, text)));
        if (!rows.some(([id]) => id === chosen.key) || !chosen.key) chosen.key = session.info.key_id || rows[0][0];
      }
      select.value = chosen.key;
      const history = await get(`/console/api/key-history?key=${encodeURIComponent(chosen.key)}`);
      charts.replaceChildren(...(history.times_s.length ? drawCharts(KEY_CHARTS, history) : [emptyCard("No points yet", "The key has sent no request since the server started.")]));
    } catch (error) {
      charts.replaceChildren(problemBox(error));
    }
  };
  return repeated(draw);
}

// The latest traces, and a sample that ends by itself.
function traceView(area) {
  const rate = h("select", {"aria-label": "How many requests to trace"}, [["1", "every request"], ["10", "one of 10 requests"], ["100", "one of 100 requests"], ["1000", "one of 1000 requests"]].map(([value, text]) => h("option", {value, selected: value === "10"}, text)));
  const button = h("button", {type: "button", onclick: () => sample(isOn ? 0 : Number(rate.value))}, "Trace for a minute");
  const note = h("p", {class: "hint", role: "status"}), list = h("div", {class: "traces"});
  let isOn = false, shown = "";
  area.append(h("section", {class: "card", "aria-label": "Traces"}, h("h2", null, "Traces"),
    h("p", {class: "card-note"}, "The last 100 traces in memory. While a sample runs, requests do not use the fast path, so they are slower."), h("div", {class: "row"}, rate, button), note, list));
  function draw({rate: running, ends_s: endsS, traces}) {
    isOn = running > 0;
    setText(button, isOn ? "Stop" : "Trace for a minute");
    rate.disabled = isOn;
    setText(note, isOn ? `Tracing one of ${running} requests until ${clock(endsS)}.` : "");
    const key = traces.map(trace => trace.number).join();
    if (shown === key && list.childElementCount) return;
    shown = key;
    const open = new Set([...list.querySelectorAll("details[open]")].map(item => item.dataset.number));
    list.replaceChildren(...traces.map(trace => traceRow(trace, open.has(String(trace.number)))), ...(traces.length ? [] : [h("div", {class: "empty"}, h("p", null, "No request was traced yet. The playground can trace a single one."))]));
  }
  async function sample(value) {
    try {
      draw(await post("/console/api/traces", {rate: value, seconds: 60}));
    } catch (error) {
      list.replaceChildren(problemBox(error));
    }
  }
  const refresh = async () => {
    try {
      draw(await get("/console/api/traces"));
    } catch (error) {
      list.replaceChildren(problemBox(error));
    }
  };
  let lastS = 0;
  return () => {
    if (live.timeS - lastS < (isOn ? 2 : REFRESH_S)) return;
    lastS = live.timeS;
    refresh();
  };
}

function traceRow({number: id, time_s: timeS, waterfall: trace}, isOpen) {
  const row = h("details", {"data-number": id}, h("summary", null, h("time", null, clock(timeS)), h("strong", null, trace.model), h("span", {class: "figure"}, time(trace.total_us))));
  row.addEventListener("toggle", () => { if (row.open && row.childElementCount === 1) row.append(waterfall(trace)); });
  row.open = isOpen;
  return row;
}

function logTail() {
  const list = h("ol"), frame = h("div", {class: "log", tabindex: "0", role: "log", "aria-label": "Log"}, list);
  const severity = h("select", {"aria-label": "Severity", onchange: filter}, ["All", "Warnings and errors", "Errors"].map(text => h("option", null, text)));
  const text = h("input", {type: "search", placeholder: "Filter the log", "aria-label": "Filter the log", oninput: filter});
  const box = h("section", {class: "card"}, h("div", {class: "head"}, h("h2", null, "Log"), h("div", {class: "tools"}, severity, text)), frame);
  let last = 0, isBusy = false;
  if (!may("logging")) frame.replaceWith(h("p", {class: "card-note"}, "Your key lacks the scope 'logging'."));

  const isShown = line => (severity.selectedIndex === 0 || line.dataset.severity === "ERROR" || (severity.selectedIndex === 1 && line.dataset.severity === "WARNING")) &&
    line.textContent.toLowerCase().includes(text.value.trim().toLowerCase());
  function filter() {
    for (const line of list.children) line.hidden = !isShown(line);
  }
  async function update() {
    if (isBusy || !may("logging") || !live.server || live.server.last_log_line === last) return;
    isBusy = true;
    try {
      if (live.server.last_log_line < last) { last = 0; list.replaceChildren(); }
      const {lines} = await get(`/console/api/log?after=${last}`);
      const isAtEnd = frame.scrollTop + frame.clientHeight >= frame.scrollHeight - 30;
      for (const line of lines) {
        const item = h("li", {class: line.severity, "data-severity": line.severity}, h("time", null, clock(line.time_s)), ` ${line.severity[0]} `, line.message, h("span", {class: "origin"}, `  ${line.origin}`));
        item.hidden = !isShown(item);
        list.append(item);
      }
      while (list.children.length > MAX_LINES) list.firstChild.remove();
      if (lines.length) last = lines.at(-1).number;
      if (isAtEnd) frame.scrollTop = frame.scrollHeight;
    } catch (error) {
      list.replaceChildren(h("li", null, problemBox(error)));
    }
    isBusy = false;
  }
  return {box, update};
}
