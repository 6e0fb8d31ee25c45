// Builds elements. Text always becomes text nodes, so nothing that a server sends is read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function toast(text, actionName, action) {
  const box = h("div", {class: "toast"}, h("span", null, text));
  if (action) box.append(h("button", {type: "button", onclick: () => { box.remove(); action(); }}, actionName));
  document.getElementById("toasts").append(box);
  setTimeout(() => box.remove(), action ? 10000 : 6000);
}

// Shows a dialog and resolves with what `submit` returned, or with null if it was closed.
export function ask(title, body, {confirm = "OK", danger = false, cancel = "Cancel", submit = () => true} = {}) {
  return new Promise(resolve => {
    const problem = h("div", {role: "alert"});
    const done = h("button", {type: "submit", class: danger ? "danger" : "primary"}, confirm);
    const form = h("form", {method: "dialog"}, body, problem,
      h("div", {class: "actions"}, cancel && h("button", {type: "button", onclick: () => dialog.close()}, cancel), done));
    const heading = h("h2", {id: "dialog-title"}, title);
    const dialog = h("dialog", {"aria-labelledby": "dialog-title"}, heading, form);
    let result = null;
    form.addEventListener("submit", async event => {
      event.preventDefault();
      done.disabled = true;
      try {
        result = await submit(new FormData(form), form);
        dialog.close();
      } catch (error) {
        problem.replaceChildren(problemBox(error));
        done.disabled = false;
      }
    });
    dialog.addEventListener("close", () => { dialog.remove(); resolve(result); });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export function problemBox(error) {
  return h("div", {class: "problem"}, h("h2", null, error.title ?? "It did not work"),
    error.advice ? h("p", {class: "card-note"}, error.advice) : null, h("pre", null, error.message));
}

// A figure with its title.
export function fact(title) {
  const value = h("span", {class: "fact-value"}, dash), note = h("span", {class: "fact-note"});
  return {box: h("div", {class: "fact"}, h("span", {class: "fact-title"}, title), value, note),
    set: (text, noteText = "") => { setText(value, text); setText(note, noteText); }};
}

export async function copy(text, button) {
  await navigator.clipboard.writeText(text);
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1500);
}

export const dash = "–";

export function number(value, digits = 3) {
  if (value === null || value === undefined) return dash;
  if (value === 0) return "0";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

export function bytes(value) {
  if (!value) return dash;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit++; }
  return `${value >= 100 ? Math.round(value) : Number(value.toPrecision(3))} ${units[unit]}`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return dash;
  return value >= 1000 ? `${number(value / 1000)} s` : `${number(value)} ms`;
}

export function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function clock(timeS) {
  return new Date(timeS * 1000).toLocaleTimeString("en-GB");
}

// Tabs with the keyboard behaviour that screen readers expect.
export function tabs(names, select, label) {
  const buttons = names.map(name => h("button", {type: "button", role: "tab", onclick: () => choose(name)}, name));
  const list = h("div", {class: "tabs", role: "tablist", "aria-label": label}, buttons);
  function choose(name, focus) {
    buttons.forEach((button, index) => {
      const chosen = names[index] === name;
      button.setAttribute("aria-selected", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
      if (chosen && focus) button.focus();
    });
    select(name);
  }
  list.addEventListener("keydown", event => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    const now = buttons.findIndex(button => button.getAttribute("aria-selected") === "true");
    choose(names[(now + step + names.length) % names.length], true);
  });
  return {list, choose};
}
