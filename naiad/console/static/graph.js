// An ensemble as a graph, from left to right: inputs, steps in the order in which they can run, outputs.

import {h, svg} from "./dom.js";

const HEIGHT = 46, GAP_X = 96, GAP_Y = 22, CHAR = 7.6, PAD = 16;

export function ensembleGraph(row) {
  const nodes = new Map(), producers = new Map();
  const add = (id, text, kind) => nodes.set(id, {id, text, kind, column: 0, width: Math.max(70, text.length * CHAR + 2 * PAD)});
  for (const name of row.inputs) { add(`in:${name}`, name, "tensor"); producers.set(name, `in:${name}`); }
  row.steps.forEach((step, index) => {
    add(`step:${index}`, step.model, "step");
    for (const tensor of Object.values(step.outputs)) producers.set(tensor, `step:${index}`);
  });
  for (const name of row.outputs) add(`out:${name}`, name, "tensor");
  const edges = [];
  const connect = (tensor, to) => { if (producers.has(tensor)) edges.push({from: producers.get(tensor), to, tensor}); };
  row.steps.forEach((step, index) => Object.values(step.inputs).forEach(tensor => connect(tensor, `step:${index}`)));
  row.outputs.forEach(name => connect(name, `out:${name}`));
  // A node is right of everything it needs. As many rounds as nodes are enough, also for a circle.
  for (let round = 0; round < nodes.size; round++) {
    for (const {from, to} of edges) nodes.get(to).column = Math.max(nodes.get(to).column, Math.min(nodes.get(from).column + 1, nodes.size));
  }
  const last = Math.max(...[...nodes.values()].map(node => node.column));
  for (const node of nodes.values()) if (node.id.startsWith("out:")) node.column = last;
  const columns = [];
  for (const node of nodes.values()) (columns[node.column] ??= []).push(node);
  const tallest = Math.max(...columns.map(column => column?.length ?? 0));
  const height = tallest * (HEIGHT + GAP_Y) - GAP_Y;
  let x = 1;
  for (const column of columns.filter(Boolean)) {
    const width = Math.max(...column.map(node => node.width));
    const top = (height - (column.length * (HEIGHT + GAP_Y) - GAP_Y)) / 2;
    column.forEach((node, index) => Object.assign(node, {x, y: top + index * (HEIGHT + GAP_Y) + 1, width}));
    x += width + GAP_X;
  }
  const width = x - GAP_X + 1;
  const label = `${row.name}: ${row.steps.map(step => step.model).join(", then ")}`;
  const picture = svg("svg", {class: "graph", viewBox: `0 0 ${width} ${height + 2}`, width, role: "img", "aria-label": label},
    svg("defs", null, svg("marker", {id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto"},
      svg("path", {class: "arrow", d: "M0 0L8 4L0 8z"}))));
  const drawn = new Map();
  for (const {from, to, tensor} of edges) {
    const key = `${from}>${to}`;
    if (drawn.has(key)) { drawn.get(key).textContent += `, ${tensor}`; continue; }
    const a = nodes.get(from), b = nodes.get(to);
    const x1 = a.x + a.width, y1 = a.y + HEIGHT / 2, x2 = b.x, y2 = b.y + HEIGHT / 2, middle = (x1 + x2) / 2;
    const title = svg("title", null, tensor);
    picture.append(svg("path", {class: "edge", d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`, "marker-end": "url(#arrow)"}, title));
    drawn.set(key, title);
    if (a.kind === "step" && b.kind === "step") {
      const text = tensor.length > 13 ? `${tensor.slice(0, 12)}…` : tensor;
      picture.append(svg("text", {class: "edge-name", x: middle, y: (y1 + y2) / 2 - 7, "text-anchor": "middle"}, text));
    }
  }
  for (const node of nodes.values()) {
    const parts = [svg("rect", {x: node.x, y: node.y, width: node.width, height: HEIGHT, rx: node.kind === "tensor" ? 23 : 10}),
      svg("text", {x: node.x + node.width / 2, y: node.y + HEIGHT / 2 + 4.5, "text-anchor": "middle"}, node.text)];
    picture.append(svg("g", {class: node.kind}, parts));
  }
  const links = [...new Set(row.steps.map(step => step.model))];
  return h("div", null, h("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Graph of the ensemble"}, picture),
    h("p", {class: "hint"}, "Steps: ", links.map((model, index) => [index ? ", " : "", h("a", {href: `#/models/${encodeURIComponent(model)}`}, model)])));
}
