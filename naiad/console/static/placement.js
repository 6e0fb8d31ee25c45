// Where a model runs in a cluster: the fields of a [[deployment]] of the cluster file, as text to apply.

import {field, select} from "./deploy_fields.js";
import {h} from "./dom.js";

export const emptyPlacement = () => ({replicas: "1", cpus: "1", memory: "", gpus: "", accelerator: "", strategy: "spread", perNode: "", require: "", avoid: "", nodes: "", awayFrom: "", isScaled: false, minReplicas: "1", maxReplicas: "4", targetQueue: "8"});

const list = text => text.split(/[ ,]+/).filter(Boolean);
const text = value => JSON.stringify(value);
const slug = name => name.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 63);  // deployments have stricter names than models
const table = rows => `{ ${rows.map(([name, value]) => `${name} = ${value}`).join(", ")} }`;

// "zone=a, disk=nvme" -> { "zone" = "a", "disk" = "nvme" }
function labels(value) {
  const rows = list(value).map(item => item.split("=")).filter(([name, other]) => name && other);
  return rows.length ? table(rows.map(([name, ...rest]) => [text(name), text(rest.join("="))])) : "";
}

export function deploymentText(name, repository, placement) {
  const lines = ["[[deployment]]", `name = ${text(slug(name))}`, `repository = ${text(repository)}`, `models = [${text(name)}]`];
  const resources = [["cpus", placement.cpus], ["memory", placement.memory && text(placement.memory)], ["gpus", placement.gpus], ["accelerator_type", placement.accelerator && text(placement.accelerator)]].filter(([, value]) => value);
  const rules = [["strategy", text(placement.strategy)], ["max_replicas_per_node", placement.perNode], ["require", labels(placement.require)], ["avoid", labels(placement.avoid)],
    ["nodes", list(placement.nodes).length && text(list(placement.nodes))], ["away_from", list(placement.awayFrom).length && text(list(placement.awayFrom))]].filter(([, value]) => value);
  if (placement.isScaled) lines.push(`autoscaling = ${table([["min_replicas", placement.minReplicas || "0"], ["max_replicas", placement.maxReplicas || "1"], ["target_queue", placement.targetQueue || "8"]])}`);
  else lines.push(`replicas = ${placement.replicas || "1"}`);
  if (resources.length) lines.push(`resources = ${table(resources)}`);
  lines.push(`placement = ${table(rules)}`);
  return `${lines.join("\n")}\n`;
}

export function placementFields(placement, changed) {
  const input = (name, attributes = {}) => h("input", {...attributes, value: placement[name], spellcheck: "false", autocomplete: "off", oninput: event => { placement[name] = event.target.value.trim(); changed(); }});
  const count = (name, min, attributes = {}) => input(name, {type: "number", min: String(min), ...attributes});
  const scale = h("div");
  const draw = () => scale.replaceChildren(placement.isScaled ? h("div", {class: "pairs"},
    field("Fewest replicas", count("minReplicas", 0), {hint: "0: the model sleeps when nobody asks, and the first request wakes it."}), field("Most replicas", count("maxReplicas", 1)),
    field("Requests per replica", count("targetQueue", 1), {hint: "With more at the same time, a replica is added."}))
    : h("div", {class: "pairs"}, field("Replicas", count("replicas", 0), {hint: "Servers that serve the model, each with the instances above."})));
  draw();
  const check = h("input", {type: "checkbox", checked: placement.isScaled, onchange: event => { placement.isScaled = event.target.checked; draw(); changed(); }});
  return h("div", null, h("div", {class: "checks"}, h("label", null, check, "As many replicas as the load needs")), scale,
    h("h3", null, "What each replica reserves"), h("div", {class: "pairs"},
      field("CPUs", count("cpus", 0, {step: "any"})), field("Memory", input("memory", {placeholder: "none"}), {hint: "Such as 4GiB."}),
      field("GPUs", count("gpus", 0, {step: "any", placeholder: "0"}), {hint: "Whole ones, or a share of one such as 0.5."}), field("Type of GPU", input("accelerator", {placeholder: "any"}), {hint: "As Ray names it, such as H100."})),
    h("h3", null, "Nodes"), h("div", {class: "pairs"},
      field("Order", select([["spread", "Spread over the nodes"], ["pack", "Fill one node first"]], placement.strategy, value => { placement.strategy = value; changed(); })),
      field("Most replicas on one node", count("perNode", 1, {placeholder: "no limit"}), {hint: "1 keeps them on different machines."}),
      field("Labels that a node must have", input("require", {placeholder: "zone=a, disk=nvme"}), {hint: "naiad cluster join --label sets them."}), field("Labels to avoid", input("avoid", {placeholder: "disk=slow"})),
      field("Only these nodes", input("nodes", {placeholder: "any"}), {hint: "Names or addresses, with commas between them."}), field("Not next to these deployments", input("awayFrom", {placeholder: "none"}))));
}
