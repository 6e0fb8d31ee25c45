// A unified diff with colours.

import {h} from "./dom.js";

const kind = line => line.startsWith("+++") || line.startsWith("---") || line.startsWith("@@") ? "diff-head" : line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "";

export function diffView(text, label) {
  const lines = text.replace(/\n$/, "").split("\n");
  return h("pre", {class: "code diff", tabindex: "0", role: "region", "aria-label": label}, lines.map(line => h("span", {class: kind(line)}, `${line}\n`)));
}
