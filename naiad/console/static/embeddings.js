// Embeddings: texts, and how similar they are.

import {post} from "./api.js";
import {codePanel} from "./code.js";
import {h, milliseconds, number, problemBox} from "./dom.js";

const EXAMPLE = ["The cat sleeps on the sofa.", "A kitten naps on the couch.", "Interest rates rose again."];
const MAX_SHOWN = 40, MAX_TEXTS = 50;
let kept = EXAMPLE.join("\n");

export function embeddings(area, row) {
  const texts = h("textarea", {rows: "8", value: kept, oninput: () => { kept = texts.value; }});
  const button = h("button", {type: "submit", class: "primary"}, "Compare");
  const result = h("section", {class: "card response", "aria-label": "Similarity", "aria-live": "polite"}, h("h2", null, "Similarity"),
    h("p", {class: "card-note"}, "Compare texts to see a matrix."));
  const code = h("div"), codeBox = h("details", {class: "card", hidden: true}, h("summary", null, "Show as code"), code);
  const show = (...content) => result.replaceChildren(h("h2", null, "Similarity"), ...content);
  const form = h("form", {class: "card", "aria-label": "Request", onsubmit: async event => {
    event.preventDefault();
    const input = texts.value.split("\n").map(text => text.trim()).filter(Boolean);
    if (!input.length || input.length > MAX_TEXTS) {
      show(problemBox({title: "Nothing was sent", message: input.length ? `the page compares at most ${MAX_TEXTS} texts, and there are ${input.length}` : "there is no text", advice: ""}));
      return;
    }
    const request = {model: row.name, input};
    button.disabled = true;
    const start = performance.now();
    try {
      const response = await post("/v1/embeddings", request);
      const vectors = response.data.map(item => item.embedding), tokens = response.usage?.prompt_tokens;
      show(h("p", {class: "card-note"}, [milliseconds(performance.now() - start), `${vectors[0].length} dimensions`, tokens && `${tokens} tokens`].filter(Boolean).join(" · ")),
        ...matrix(input, vectors));
    } catch (error) {
      show(problemBox(error));
    }
    button.disabled = false;
    code.replaceChildren(codePanel(row, request, []));
    codeBox.hidden = false;
  }}, h("h2", null, "Texts"), h("p", {class: "card-note"}, "One text per line."), h("label", {class: "field"}, "Texts", texts), button);
  area.replaceChildren(h("div", {class: "columns"}, form, h("div", null, result, codeBox)));
}

function cosine(a, b) {
  let dot = 0, sizeA = 0, sizeB = 0;
  for (let index = 0; index < a.length; index++) {
    dot += a[index] * b[index];
    sizeA += a[index] ** 2;
    sizeB += b[index] ** 2;
  }
  return sizeA && sizeB ? dot / Math.sqrt(sizeA * sizeB) : 0;
}

function matrix(texts, vectors) {
  const short = text => text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN - 1)}…` : text;
  let best = null;
  const rows = vectors.map((vector, row) => h("tr", null, h("th", {scope: "row", title: texts[row]}, `${row + 1} `, h("span", {class: "sub"}, short(texts[row]))),
    vectors.map((other, column) => {
      const value = cosine(vector, other);
      if (column > row && (!best || value > best.value)) best = {value, row, column};
      const cell = h("td", {class: "similarity"}, value.toFixed(2));
      cell.style.setProperty("--share", `${Math.round(Math.max(0, value) * 100)}%`);
      return cell;
    })));
  const table = h("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Matrix of similarities"},
    h("table", {class: "matrix"}, h("thead", null, h("tr", null, h("td"), texts.map((text, index) => h("th", {scope: "col", title: text}, String(index + 1))))), h("tbody", null, rows)));
  return [table, best ? h("p", {class: "hint"}, `Most similar: ${best.row + 1} and ${best.column + 1}, cosine ${number(best.value)}.`) : null].filter(Boolean);
}
