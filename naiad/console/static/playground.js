// The playground: chat with language models, similarity of texts for embedding models, tensors for
// all others.

import {chat} from "./chat.js";
import {h} from "./dom.js";
import {embeddings} from "./embeddings.js";
import {listen, live} from "./live.js";
import {tensors} from "./tensors.js";

let rival = "";

export function show(root, name) {
  const select = h("select", {"aria-label": "Model", onchange: () => { location.hash = `#/playground/${encodeURIComponent(select.value)}`; }});
  const compare = h("select", {"aria-label": "Compare with", hidden: true, onchange: () => { rival = compare.value; update(); }});
  const area = h("div", {class: "playground"});
  root.append(h("div", {class: "head"}, h("h1", null, "Playground"), h("div", {class: "tools"}, select, compare)), area);
  let shown = null, leave = () => {};

  function update() {
    const rows = [...live.models.values()].filter(row => row.state === "READY");
    fill(select, rows.map(row => [row.name, row.name]));
    const row = rows.find(row => row.name === name) ?? (name ? null : rows.find(row => row.is_language) ?? rows[0]);
    if (row) select.value = row.name;
    const others = row?.is_language ? rows.filter(other => other.is_language && other !== row) : [];
    const second = others.find(other => other.name === rival);
    const key = row ? [row.name, second?.name].join("\n") : "";
    // What was typed stays while the model reloads or the server restarts.
    if (shown && !row) return;
    compare.hidden = !others.length;
    fill(compare, [["", "Compare with…"], ...others.map(other => [other.name, `and ${other.name}`])]);
    compare.value = second?.name ?? "";
    if (shown === key) return;
    shown = key;
    select.hidden = !rows.length;
    leave();
    leave = () => {};
    area.replaceChildren();
    if (!row) {
      area.append(h("section", {class: "card empty"}, h("h2", null, name ? `${name} is not ready` : "No model is ready"),
        h("p", null, "Load a model on the ", h("a", {href: "#/models"}, "Models"), " page.")));
    } else if (row.is_language) leave = chat(area, second ? [row, second] : [row]);
    else (row.is_embedding ? textOrTensors : tensors)(area, row);
  }
  const stop = listen(update);
  return () => { stop(); leave(); };
}

function fill(select, options) {
  const key = JSON.stringify(options);
  if (select.dataset.options === key) return;
  select.dataset.options = key;
  select.replaceChildren(...options.map(([value, text]) => h("option", {value}, text)));
}

function textOrTensors(area, row) {
  const inner = h("div"), ways = {Texts: embeddings, Tensors: tensors};
  const buttons = Object.keys(ways).map(way => h("button", {type: "button", class: "small", onclick: () => choose(way)}, way));
  function choose(way) {
    buttons.forEach(button => button.setAttribute("aria-pressed", String(button.textContent === way)));
    inner.replaceChildren();
    ways[way](inner, row);
  }
  area.append(h("div", {class: "row ways", role: "group", "aria-label": "How to send"}, buttons), inner);
  choose("Texts");
}
