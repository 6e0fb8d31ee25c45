// The trace of one request as a waterfall: a row per model and stage, from left to right in time.

import {h, number, svg} from "./dom.js";

const WIDTH = 600, ROW = 24, LABEL = 150, TIME = 76, INDENT = 12, MAX_NAME = 20;
const CLASSES = {receive: "c7", send: "c7", queue: "c4", "copy inputs": "c5", compute: "c0", "copy outputs": "c2"};
const MEANING = {receive: "The request arrives", send: "The response is written", queue: "The request waits for an instance",
  "copy inputs": "The worker reads the inputs", compute: "The model computes", "copy outputs": "The worker sends the outputs"};

export function time(us) {
  if (us < 1000) return `${number(us)} µs`;
  return us < 1e6 ? `${number(us / 1000)} ms` : `${number(us / 1e6)} s`;
}

export function waterfall({model, total_us: total, num_responses: numResponses, endpoint, spans}) {
  const rows = [];
  const receive = endpoint.find(bar => bar.name === "receive"), send = endpoint.find(bar => bar.name === "send");
  if (receive) rows.push({...receive, depth: 0});
  for (const span of spans) {
    rows.push({name: `${span.model} ${span.version}`, start_us: span.start_us, end_us: span.end_us, depth: span.depth, isSpan: true});
    rows.push(...span.stages.map(stage => ({...stage, depth: span.depth + 1})));
  }
  if (send) rows.push({...send, depth: 0, name: numResponses > 1 ? `send, ${numResponses} pieces` : "send", kind: "send"});
  const scale = (WIDTH - LABEL - TIME) / (total || 1), height = rows.length * ROW + 26;
  const label = `Trace of ${model}: ${time(total)}. ${rows.map(row => `${row.name} ${time(row.end_us - row.start_us)}`).join(", ")}`;
  const picture = svg("svg", {class: "chart waterfall", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label});
  for (const part of [0, 0.5, 1]) {
    const x = LABEL + part * (WIDTH - LABEL - TIME);
    picture.append(svg("line", {class: "grid", x1: x, x2: x, y1: 0, y2: height - 22}),
      svg("text", {x, y: height - 6, "text-anchor": part === 1 ? "end" : part ? "middle" : "start"}, part ? time(total * part) : "0"));
  }
  rows.forEach((row, index) => {
    const y = index * ROW, width = Math.max(2, (row.end_us - row.start_us) * scale), kind = row.kind ?? row.name;
    const text = row.name.length > MAX_NAME ? `${row.name.slice(0, MAX_NAME - 1)}…` : row.name;
    picture.append(svg("g", null, svg("title", null, `${MEANING[kind] ?? `The request to ${row.name}`}: from ${time(row.start_us)} to ${time(row.end_us)}`),
      svg("text", {class: row.isSpan ? "note" : "", x: row.depth * INDENT, y: y + 16}, text),
      svg("rect", {class: row.isSpan ? "span" : `stage ${CLASSES[kind] ?? "c7"}`, x: LABEL + row.start_us * scale, y: y + (row.isSpan ? 9 : 5), width, height: row.isSpan ? 6 : 14, rx: 2}),
      svg("text", {class: "time", x: WIDTH, y: y + 16, "text-anchor": "end"}, time(row.end_us - row.start_us))));
  });
  return h("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": `Trace of ${model}`}, picture);
}
