// The page of a router: nodes, the replicas on them, and which models they serve.

import {get, may, post} from "./api.js";
import {ask, dash, fact, h, number, problemBox, setText, toast} from "./dom.js";

const POLL_MS = 2000;
const STATES = {ready: ["ready", "Ready"], starting: ["loading", "Starting"], "not ready": ["loading", "Not ready"], draining: ["loading", "Draining"], down: ["failed", "Down"]};
const replicaApi = (name, verb) => `/router/replicas/${encodeURIComponent(name)}/${verb}`;

function nodeOf(replica) {
  try { return new URL(replica.url).hostname.replace(/^\[|\]$/g, ""); } catch { return replica.url; }
}

export function show(root) {
  const connection = document.getElementById("connection");
  const facts = {nodes: fact("Nodes"), replicas: fact("Replicas ready"), load: fact("Requests in flight"), models: fact("Models")};
  const problem = h("div", {"aria-live": "polite"}), nodes = h("div"), models = h("div");
  root.append(h("div", {class: "head"}, h("h1", null, "Nodes")), problem, h("section", {class: "facts", "aria-label": "Summary"}, Object.values(facts).map(item => item.box)), nodes, models);
  let timer = 0, isOpen = true, shown = "";

  async function refresh() {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      const [{replicas}, routed] = await Promise.all([get("/router/replicas"), get("/router/models")]);
      if (!isOpen) return;
      setText(connection, "Ready");
      connection.classList.remove("lost");
      problem.replaceChildren();
      draw(replicas, routed.models);
    } catch (error) {
      if (!isOpen) return;
      if (error.status === 0) { setText(connection, "Connection lost. Reconnecting…"); connection.classList.add("lost"); }
      else problem.replaceChildren(problemBox(error));
    }
    timer = setTimeout(refresh, POLL_MS);
  }

  function draw(replicas, routed) {
    const text = JSON.stringify([replicas, routed]);
    if (text === shown) return;
    shown = text;
    const byNode = Map.groupBy ? Map.groupBy(replicas, nodeOf) : group(replicas, nodeOf);
    const ready = replicas.filter(row => row.state === "ready"), failed = replicas.filter(row => row.state === "down");
    facts.nodes.set(String(byNode.size));
    facts.replicas.set(`${ready.length} of ${replicas.length}`, failed.length ? `${failed.length} down` : "");
    facts.load.set(String(replicas.reduce((sum, row) => sum + row.in_flight, 0)), "of this router");
    facts.models.set(String(routed.length));
    const focused = document.activeElement?.getAttribute("aria-label");
    nodes.replaceChildren(...(replicas.length ? [...byNode].sort(([a], [b]) => a < b ? -1 : 1).map(([node, rows]) => nodeCard(node, rows, refresh)) : [h("section", {class: "card empty"}, h("h2", null, "No replicas yet"),
      h("p", null, "Start the router with --replica URL or --config FILE, or start replicas with ", h("code", null, "naiad cluster apply FILE"), ".")) ]));
    models.replaceChildren(...(routed.length ? [modelCard(routed, replicas)] : []));
    if (focused) [...root.querySelectorAll("button")].find(button => button.getAttribute("aria-label") === focused)?.focus();
  }

  const onVisible = () => { if (!document.hidden) refresh(); };
  document.addEventListener("visibilitychange", onVisible);
  refresh();
  return () => { isOpen = false; clearTimeout(timer); document.removeEventListener("visibilitychange", onVisible); };
}

function group(rows, read) {
  const found = new Map();
  for (const row of rows) found.set(read(row), [...(found.get(read(row)) ?? []), row]);
  return found;
}

const column = (title, kind = "text") => h("th", {scope: "col", class: kind}, title);

function nodeCard(node, rows, refresh) {
  const load = rows.reduce((sum, row) => sum + row.in_flight, 0);
  return h("section", {class: "card table-card", "aria-label": `Node ${node}`}, h("div", {class: "node-head"}, h("h2", null, node), h("span", {class: "sub"}, `${rows.length === 1 ? "one replica" : `${rows.length} replicas`}, ${load} in flight`)),
    h("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": `Replicas on ${node}`}, h("table", {class: "stack"},
      h("thead", null, h("tr", null, column("Replica"), column("State"), column("Models"), column("In flight", "number"), column("Requests", "number"), column("Actions"))),
      h("tbody", null, rows.map(row => replicaRow(row, refresh))))));
}

function replicaRow(row, refresh) {
  const [kind, title] = STATES[row.state] ?? ["", row.state], ejected = Object.entries(row.ejected);
  return h("tr", null, h("th", {scope: "row"}, row.name, h("span", {class: "sub"}, row.grpc ? `${row.url}, gRPC ${row.grpc}` : row.url)),
    h("td", {class: "full"}, h("span", {class: `state ${kind}`}, title), row.reason && row.state !== "ready" ? h("span", {class: "reason"}, row.reason) : null,
      row.breaker === "closed" ? null : h("span", {class: "sub"}, `breaker ${row.breaker}`)),
    h("td", {class: "text wrap full", "data-label": "Models"}, row.models.join(", ") || dash, ...Object.entries(row.unserved_models).map(([model, reason]) => h("span", {class: "reason"}, `${model}: ${reason}`)),
      ...ejected.map(([model, reason]) => h("span", {class: "reason"}, `${model} is sent elsewhere: ${reason}`))),
    h("td", {class: "number", "data-label": "In flight"}, String(row.in_flight)), h("td", {class: "number", "data-label": "Requests"}, number(row.counters.requests ?? 0)),
    h("td", {class: "full"}, may("model-repository") ? actions(row, refresh) : dash));
}

function actions(row, refresh) {
  const act = (verb, text) => async () => {
    try { await post(replicaApi(row.name, verb)); if (text) toast(text); } catch (error) { await ask(error.title, h("pre", null, error.message), {confirm: "Close", cancel: ""}); }
    refresh();
  };
  const drain = async () => {
    const isSure = await ask(`Drain ${row.name}?`, h("p", null, "It gets no new requests. Those in flight and open sequences go on. You can resume it."), {confirm: "Drain", danger: true});
    if (isSure) await act("drain", `${row.name} gets no new requests`)();
  };
  return h("div", {class: "row"}, row.state === "draining" ? h("button", {type: "button", class: "small", "aria-label": `Resume ${row.name}`, onclick: act("resume", `${row.name} gets requests again`)}, "Resume")
    : h("button", {type: "button", class: "small", "aria-label": `Drain ${row.name}`, onclick: drain}, "Drain"),
  h("button", {type: "button", class: "small", "aria-label": `Check now: ${row.name}`, onclick: act("check", "")}, "Check now"));
}

function modelCard(routed, replicas) {
  return h("section", {class: "card table-card", "aria-label": "Models"}, h("div", {class: "node-head"}, h("h2", null, "Models")), h("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Models of the router"}, h("table", {class: "stack"},
    h("thead", null, h("tr", null, column("Model"), column("Policy"), column("Served by"))),
    h("tbody", null, routed.map(model => h("tr", null, h("th", {scope: "row"}, model.name), h("td", {class: "text", "data-label": "Policy"}, model.policy),
      h("td", {class: "text wrap full", "data-label": "Served by"}, model.replicas.length ? `${model.replicas.length} of ${replicas.length} replicas: ${model.replicas.join(", ")}` : h("span", {class: "reason"}, "no replica can serve it now"))))))));
}
