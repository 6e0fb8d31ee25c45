// The last hour of a model in charts, and the end of the log.

import {get, may} from "./api.js";
import {chart} from "./chart.js";
import {bytes, clock, h, milliseconds, number, problemBox} from "./dom.js";
import {listen, live} from "./live.js";

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

export function show(root, name) {
  const select = h("select", {"aria-label": "Model", onchange: () => { location.hash = `#/watch/${encodeURIComponent(select.value)}`; }});
  const charts = h("div", {class: "cards"}), events = h("div"), log = logTail();
  root.append(h("div", {class: "head"}, h("h1", null, "Watch"), h("div", {class: "tools"}, select)), charts, events, log.box);
  let fetchedS = 0, isBusy = false, chosen = null;

  async function refresh(row) {
    isBusy = true;
    try {
      const history = await get(`/console/api/history/${encodeURIComponent(row.name)}`);
      fetchedS = live.timeS;
      if (!history.times_s.length) {
        charts.replaceChildren(h("section", {class: "card empty wide"}, h("h2", null, "No points yet"), h("p", null, "The server measures every ten seconds while the model is loaded.")));
      } else {
        charts.replaceChildren(...CHARTS.filter(([, , , , isShown]) => !isShown || isShown(row)).map(([title, note, series, format]) => chart(title, note, history.times_s,
          Object.entries(series).map(([id, text]) => ({name: text, points: history.series[id]})), format, history.events, live.timeS)));
      }
      events.replaceChildren(history.events.length ? h("section", {class: "card"}, h("h2", null, "Events"), h("ul", {class: "log"},
        history.events.toReversed().slice(0, 20).map(event => h("li", null, h("time", null, clock(event.time_s)), ` ${event.text}`)))) : "");
    } catch (error) {
      charts.replaceChildren(problemBox(error));
      fetchedS = live.timeS;
    }
    isBusy = false;
  }

  return listen(() => {
    const rows = [...live.models.values()].filter(row => row.state);
    const names = rows.map(row => row.name).join("\n");
    if (select.dataset.names !== names) {
      select.dataset.names = names;
      select.replaceChildren(...rows.map(row => h("option", {value: row.name}, row.name)));
    }
    const busiest = rows.toSorted((a, b) => b.num_succeeded - a.num_succeeded)[0];
    const row = live.models.get(name || chosen) ?? busiest;
    chosen ??= row?.name;
    if (!row) charts.replaceChildren(h("section", {class: "card empty wide"}, h("h2", null, "No models are loaded")));
    else if (!isBusy && live.timeS - fetchedS >= REFRESH_S) { select.value = row.name; refresh(row); }
    log.update();
  });
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
