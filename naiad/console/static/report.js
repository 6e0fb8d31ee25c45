// The report of a measurement within the console. It is a page of its own with the same style
// sheet, so its parts fit here; its script is left out, and what it does is done here.

import {h} from "./dom.js";

const FORBIDDEN = "script, style, link, meta, iframe, object, embed, form, base, button";

// The policy of the console would report inline styles even while they are only parsed.
const INLINE = /<(style|script)\b[^>]*>[\s\S]*?<\/\1>| style="[^"]*"/g;

export function reportParts(text) {
  const page = new DOMParser().parseFromString(text.replace(INLINE, ""), "text/html");
  page.querySelectorAll(FORBIDDEN).forEach(element => element.remove());
  for (const element of page.querySelectorAll("*")) {
    for (const {name} of [...element.attributes]) if (/^(on|style$|href$|src$)/.test(name)) element.removeAttribute(name);
  }
  const parts = [...page.querySelector("main").children, page.querySelector("footer")].filter(Boolean).map(part => document.importNode(part, true));
  const box = h("div", {class: "report"}, parts);
  box.querySelectorAll(".scroll").forEach(frame => { frame.tabIndex = 0; frame.setAttribute("role", "region"); frame.setAttribute("aria-label", "Table"); });
  box.querySelectorAll("table.sortable th").forEach(sortable);
  box.querySelectorAll("svg").forEach(picture => { if (!picture.hasAttribute("role")) picture.setAttribute("role", "img"); });
  box.querySelectorAll("svg[role=img]:not([aria-label])").forEach(picture => picture.setAttribute("aria-label", picture.closest(".card")?.querySelector("h2")?.textContent ?? "Chart"));
  return [box];
}

const figure = text => { const value = parseFloat(text.replaceAll(",", "")); return Number.isNaN(value) ? text : value; };

function sortable(heading) {
  const button = h("button", {type: "button", class: "sort"}, heading.textContent);
  heading.replaceChildren(button);
  button.addEventListener("click", () => {
    const body = heading.closest("table").tBodies[0], isUp = heading.getAttribute("aria-sort") !== "ascending";
    const value = row => figure(row.cells[heading.cellIndex].textContent);
    heading.parentElement.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", isUp ? "ascending" : "descending");
    body.append(...[...body.rows].sort((a, b) => { const x = value(a), y = value(b); return (x < y ? -1 : x > y ? 1 : 0) * (isUp ? 1 : -1); }));
  });
}
