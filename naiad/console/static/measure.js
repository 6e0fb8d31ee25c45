// Measure: start naiad perf and naiad analyze, watch them, read their reports, apply what an
// analysis proposes. The work runs in the server, so that a reload of the page loses nothing.

import {base, get, may, post, send} from "./api.js";
import {diffView} from "./diff.js";
import {ask, copy, duration, h, problemBox, setText, toast} from "./dom.js";
import {listen, live} from "./live.js";
import {reportParts} from "./report.js";

const POLL_MS = 1000, API = "/console/api/measure";
const STATES = {waiting: "Waiting", running: "Running", done: "Done", failed: "Failed", cancelled: "Cancelled"};
const KINDS = {perf: "Load", analyze: "Search"};

export function show(root, parameter) {
  if (!may("model-repository")) {
    root.append(h("div", {class: "head"}, h("h1", null, "Measure")), h("section", {class: "card empty"}, h("h2", null, "Your key may not measure"),
      h("p", null, "Sign in with a key that has the scope 'model-repository'.")));
    return () => {};
  }
  return parameter ? showJob(root, Number(parameter)) : showAll(root);
}

// Calls `work` every second until it returns false; the page calls the result when it is left.
function poll(work) {
  let timer = 0, isLeft = false;
  const step = async () => {
    if (document.hidden || await work()) { if (!isLeft) timer = setTimeout(step, POLL_MS); }
  };
  step();
  return () => { isLeft = true; clearTimeout(timer); };
}

function showAll(root) {
  const list = h("div", {"aria-live": "polite"});
  const form = orderForm();
  root.append(h("div", {class: "head"}, h("h1", null, "Measure")), h("div", {class: "columns measure"}, form.box, h("section", {class: "card", "aria-label": "Measurements"}, h("h2", null, "Measurements"), list)));
  let shown = "";
  const stopPoll = poll(async () => {
    try {
      const {jobs} = await get(API);
      const key = JSON.stringify(jobs);
      if (shown !== key) list.replaceChildren(...jobs.map(jobRow), ...(jobs.length ? [] : [h("div", {class: "empty"}, h("p", null, "Nothing was measured since the server started."))]));
      shown = key;
      return jobs.some(job => job.state === "running" || job.state === "waiting");
    } catch (error) {
      list.replaceChildren(problemBox(error));
      return true;
    }
  });
  const stopListening = listen(() => form.update([...live.models.values()].filter(row => row.state === "READY")));
  return () => { stopPoll(); stopListening(); };
}

function jobRow(job) {
  return h("a", {class: "job", href: `#/measure/${job.id}`}, h("span", {class: "row"}, h("strong", null, job.model), h("span", {class: "card-note"}, KINDS[job.kind])), stateBadge(job),
    progressBar(job), h("span", {class: "sub"}, job.state === "running" ? job.line : [timeText(job), job.reason].filter(Boolean).join(" · ")));
}

const stateBadge = job => h("span", {class: `state ${{done: "ready", failed: "failed", running: "loading"}[job.state] ?? ""}`}, STATES[job.state]);
const timeText = job => job.ended_s ? `${duration(Math.max(1, live.timeS - job.ended_s))} ago${job.started_s ? `, took ${duration(job.ended_s - job.started_s)}` : ""}` : "";

function progressBar(job) {
  if (job.state !== "running") return null;
  return h("progress", {max: "1", "aria-label": `Progress of the measurement of ${job.model}`, ...(job.progress === null ? {} : {value: String(job.progress)})});
}

// The form.

const FIELDS = {
  perf: [
    {name: "protocol", title: "Protocol", options: [["http", "HTTP"], ["grpc", "gRPC"]], isShown: row => !row.is_language && !row.is_decoupled},
    {name: "concurrency", title: "Requests at a time", value: "1:16:5", hint: "A number, or START:END:STEP."},
    {name: "batch_size", title: "Batch size of a request", value: 1, min: 1, max: 4096, isShown: row => !row.is_language && row.max_batch_size > 0},
    {name: "prompt_tokens", title: "Tokens of a prompt", value: 128, min: 1, max: 32768, isShown: row => row.is_language},
    {name: "output_tokens", title: "Tokens of a completion", value: 64, min: 1, max: 32768, isShown: row => row.is_language},
    {name: "interval_ms", title: "Length of a window, ms", value: 2000, min: 100, max: 60000, hint: "Windows repeat until the figures are stable."},
  ],
  analyze: [
    {name: "mode", title: "Search", options: [["quick", "Quick: follow what improves"], ["brute", "Brute: try everything"], ["optuna", "Optuna: learn from each trial"]]},
    {name: "latency_budget_ms", title: "Largest p99, ms", value: "", min: 0, max: 3600000, placeholder: "no limit"},
    {name: "max_instances", title: "Most instances", value: 3, min: 1, max: 64},
    {name: "max_batch_size", title: "Largest batch", value: 32, min: 1, max: 4096},
    {name: "max_concurrency", title: "Most requests at a time", value: 64, min: 1, max: 1024},
    {name: "interval_ms", title: "Length of a window, ms", value: 1000, min: 100, max: 60000},
  ],
};
const NOTES = {
  perf: "Sends requests to the model as it serves now, and finds its throughput and latency.",
  analyze: "Starts a second server with a copy of the model's configuration, tries instances and batching, and proposes the best.",
};

function orderForm() {
  const model = h("select", {name: "model", required: true});
  const note = h("p", {class: "card-note"}), area = h("div"), problem = h("div", {role: "alert"});
  const button = h("button", {type: "submit", class: "primary"}, "Start");
  const kinds = Object.entries({perf: "Measure the load", analyze: "Find the best configuration"}).map(([value, text]) =>
    h("label", null, h("input", {type: "radio", name: "kind", value, checked: value === "perf", onchange: draw}), text));
  const form = h("form", {class: "card", "aria-label": "New measurement", onsubmit: submit}, h("h2", null, "New measurement"),
    h("fieldset", {class: "field plain checks"}, h("legend", null, "What to do"), kinds), note,
    h("div", {class: "field"}, h("label", null, "Model", model)), area, problem, button,
    h("p", {class: "hint"}, "Measurements run one at a time, with a low priority, and end with the server. They load the machine, so other requests become slower."));
  let rows = [];
  const kind = () => form.elements.kind.value;
  model.addEventListener("change", draw);

  function draw() {
    setText(note, NOTES[kind()]);
    const row = rows.find(row => row.name === model.value);
    area.replaceChildren(h("div", {class: "columns"}, FIELDS[kind()].filter(field => !row || !field.isShown || field.isShown(row)).map(field => h("div", {class: "field"},
      h("label", null, field.title, field.options ? h("select", {name: field.name}, field.options.map(([value, text]) => h("option", {value}, text))) :
        h("input", {name: field.name, value: String(field.value), placeholder: field.placeholder ?? "", ...(field.max ? {type: "number", min: String(field.min), max: String(field.max)} : {required: true})})),
      field.hint ? h("p", {class: "hint"}, field.hint) : null))));
  }

  async function submit(event) {
    event.preventDefault();
    const order = {type: kind(), model: model.value};
    for (const field of area.querySelectorAll("[name]")) {
      if (field.value !== "") order[field.name] = field.type === "number" ? Number(field.value) : field.value;
    }
    button.disabled = true;
    problem.replaceChildren();
    try {
      const job = await post(API, order);
      location.hash = `#/measure/${job.id}`;
    } catch (error) {
      problem.replaceChildren(problemBox(error));
    }
    button.disabled = false;
  }

  function update(ready) {
    const names = ready.map(row => row.name).join("\n");
    rows = ready;
    if (model.dataset.names === names) return;
    model.dataset.names = names;
    const before = model.value;
    model.replaceChildren(...ready.map(row => h("option", {value: row.name}, row.name)));
    if (ready.some(row => row.name === before)) model.value = before;
    button.disabled = !ready.length;
    draw();
  }
  draw();
  return {box: form, update};
}

// One measurement.

function showJob(root, id) {
  const title = h("h1", null, "Measurement"), tools = h("div", {class: "tools"}), facts = h("p", {class: "card-note"}), area = h("div");
  const bar = h("div", {class: "job-progress"}), output = h("pre", {class: "code", tabindex: "0", role: "log", "aria-label": "Output"});
  const outputBox = h("details", {class: "card", open: true}, h("summary", null, "Output"), output);
  root.append(h("a", {class: "back", href: "#/measure"}, "← All measurements"), h("div", {class: "head"}, h("div", null, title, facts), tools), bar, area, outputBox);
  let state = "";
  return poll(async () => {
    try {
      const job = await get(`${API}/${id}`);
      setText(title, `${job.model}: ${job.kind === "perf" ? "load" : "best configuration"}`);
      facts.replaceChildren(stateBadge(job), ` ${[timeText(job), job.state === "failed" ? "" : job.reason].filter(Boolean).join(" · ")}`);
      bar.replaceChildren(...[progressBar(job), job.state === "running" ? h("p", {class: "hint", role: "status"}, job.line || "Starting…") :
        job.state === "waiting" ? h("p", {class: "hint", role: "status"}, "Another measurement runs. This one starts when it has ended.") : null].filter(Boolean));
      bar.hidden = Boolean(job.ended_s);
      setText(output, job.lines.join("\n"));
      if (state !== job.state) {
        state = job.state;
        drawTools(tools, job);
        if (job.ended_s) await drawResult(area, job, outputBox);
      }
      return !job.ended_s;
    } catch (error) {
      area.replaceChildren(problemBox(error));
      return error.status === 0 || error.status >= 500;
    }
  });
}

function drawTools(tools, job) {
  const copyButton = h("button", {type: "button", onclick: () => copy(job.command, copyButton)}, "Copy the command");
  const remove = async () => {
    await send("DELETE", `${API}/${job.id}`);
    if (job.ended_s) location.hash = "#/measure";
  };
  tools.replaceChildren(copyButton, ...(job.has_report ? [h("a", {class: "button", href: `${base}${API}/${job.id}/report`, download: `${job.model}-${job.kind}.html`}, "Download the report")] : []),
    job.ended_s ? h("button", {type: "button", class: "danger", onclick: async () => {
      await ask("Delete this measurement?", h("p", null, "Its report is deleted, too."), {confirm: "Delete", danger: true, submit: remove});
    }}, "Delete") : h("button", {type: "button", class: "danger", onclick: async event => { event.target.disabled = true; await remove(); }}, "Cancel"));
}

async function drawResult(area, job, outputBox) {
  const parts = [];
  if (job.state === "failed") parts.push(problemBox({title: "The measurement failed", message: job.reason, advice: "The output below says more."}));
  if (job.state === "cancelled") parts.push(h("p", {class: "note"}, job.has_report ? "It was cancelled. The report has what was measured until then." : "It was cancelled."));
  if (job.kind === "analyze" && job.state !== "failed") parts.push(await proposalBox(job));
  if (job.has_report) {
    parts.push(...reportParts(await (await send("GET", `${API}/${job.id}/report`)).text()));
    outputBox.open = false;
  }
  area.replaceChildren(...parts.filter(Boolean));
}

// The configuration that an analysis proposes, as a diff.
async function proposalBox(job) {
  const box = h("section", {class: "card", "aria-label": "Proposed configuration"});
  let hadDiff = false;
  const draw = proposal => {
    const apply = async () => {
      draw(await post(`${API}/${job.id}/apply`, {tag: proposal.tag}));
      toast(`${job.model} serves with the new configuration`, "Undo", undo);
    };
    const undo = async () => {
      try {
        draw(await post(`${API}/${job.id}/undo`));
        toast(`${job.model} serves with the old configuration again`);
      } catch (error) {
        await ask(error.title, h("pre", null, error.message), {confirm: "Close", cancel: ""});
      }
    };
    const button = h("button", {type: "button", class: "primary", onclick: async () => {
      await ask(`Change ${proposal.file}?`, h("p", null, "The file is written, and the model is loaded with it. If it does not load, everything stays as it is. You can undo it."), {confirm: "Apply", submit: async () => { await apply(); return true; }});
    }}, "Apply");
    box.replaceChildren(h("h2", null, "Proposed configuration"), proposal.diff ? h("div", null, h("p", {class: "card-note"}, "The best configuration that was found, as a change of the file."), diffView(proposal.diff, `Changes of ${proposal.file}`), button) :
      h("p", {class: "card-note"}, hadDiff ? `${proposal.file} has the proposed configuration now.` : "Nothing better than the present configuration was found."));
    hadDiff ||= proposal.diff !== "";
  };
  draw(await get(`${API}/${job.id}/proposal`));
  return box;
}
