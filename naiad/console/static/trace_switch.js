// "Trace this request": asks the server for a ticket, sends it with the request, shows the trace.

import {get, may, post} from "./api.js";
import {h, problemBox} from "./dom.js";
import {time, waterfall} from "./waterfall.js";

const TRIES = 5, WAIT_MS = 150;

// `begin()` is called before a request: it returns the headers that the request must have, and
// `show(place)`, which adds the trace behind an element.
export function traceSwitch() {
  const field = h("input", {type: "checkbox"});
  const box = may("trace") ? h("div", {class: "checks trace-switch"}, h("label", null, field, "Trace the request")) : null;
  async function begin() {
    if (!field.checked) return {headers: {}, show: () => {}};
    const {header, ticket} = await post("/console/api/traces/ticket");
    return {headers: {[header]: ticket}, show: place => show(ticket, place)};
  }
  return {box, begin};
}

async function show(ticket, place) {
  const line = h("div", {class: "trace"}, "Reading the trace…");
  place.after(line);
  try {
    const trace = await find(ticket);
    line.replaceChildren(trace ? h("details", {open: true}, h("summary", null, `Trace: ${time(trace.waterfall.total_us)} in the server`), waterfall(trace.waterfall)) :
      h("p", {class: "hint"}, "There is no trace: the request did not reach a model."));
  } catch (error) {
    line.replaceChildren(problemBox(error));
  }
}

async function find(ticket) {
  for (let attempt = 0; attempt < TRIES; attempt++) {
    const {traces} = await get("/console/api/traces");
    const trace = traces.find(trace => trace.ticket === ticket);
    if (trace) return trace;
    await new Promise(resolve => setTimeout(resolve, WAIT_MS));
  }
  return null;
}
