// A line chart of the last hour as SVG: lines over time, with gaps where nothing was measured.

import {clock, h, svg} from "./dom.js";

const WIDTH = innerWidth < 620 ? 340 : 560, HEIGHT = 190, LEFT = 58, RIGHT = 10, TOP = 10, BOTTOM = 24, SPANS_S = [300, 900, 3600];

function niceTop(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map(step => step * unit).find(top => top >= value);
}

// `lines` are [{name, points}], `times` the seconds of the points, `format` makes text of a value.
export function chart(title, note, times, lines, format, events, nowS) {
  // A server that has just started would have all its points in a corner of the hour.
  const spanS = SPANS_S.find(seconds => nowS - (times[0] ?? nowS) <= seconds) ?? SPANS_S.at(-1);
  const start = nowS - spanS;
  const values = lines.flatMap(line => line.points).filter(value => value !== null);
  const top = niceTop(Math.max(0, ...values));
  const x = timeS => LEFT + (timeS - start) / spanS * (WIDTH - LEFT - RIGHT);
  const y = value => HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM);
  const summary = lines.map(line => `${line.name}: ${format(line.points.findLast(value => value !== null) ?? null)}`).join(", ");
  const picture = svg("svg", {class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}, last hour. Latest: ${summary}`});
  for (const part of [0, 0.5, 1]) {
    picture.append(svg("line", {class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(top * part), y2: y(top * part)}),
      svg("text", {x: LEFT - 8, y: y(top * part) + 4, "text-anchor": "end"}, format(top * part)));
  }
  const minutes = spanS / 60;
  for (const part of [1, 0.5, 0]) {
    picture.append(svg("text", {x: x(nowS - spanS * part), y: HEIGHT - 5, "text-anchor": part === 1 ? "start" : part ? "middle" : "end"},
      part ? `${Number((minutes * part).toFixed(1))} min ago` : "now"));
  }
  for (const event of events) {
    if (event.time_s > start) picture.append(svg("line", {class: "event-line", x1: x(event.time_s), x2: x(event.time_s), y1: TOP, y2: HEIGHT - BOTTOM}, svg("title", null, `${clock(event.time_s)} ${event.text}`)));
  }
  lines.forEach((line, index) => {
    let path = "", isOpen = false;
    times.forEach((timeS, position) => {
      const value = line.points[position];
      if (value === null || timeS < start) { isOpen = false; return; }
      const isAlone = !isOpen && (line.points[position + 1] ?? null) === null;
      path += `${isOpen ? "L" : "M"}${x(timeS).toFixed(1)} ${y(value).toFixed(1)}${isAlone ? "h2" : ""}`;
      isOpen = true;
    });
    picture.append(svg("path", {class: `line c${index}`, d: path}));
  });
  const cursor = svg("line", {class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden"});
  picture.append(cursor);
  const readout = h("p", {class: "readout"}, summary);
  picture.addEventListener("pointermove", event => {
    const box = picture.getBoundingClientRect();
    const timeS = start + ((event.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT) * spanS;
    let nearest = 0;
    times.forEach((time, index) => { if (Math.abs(time - timeS) < Math.abs(times[nearest] - timeS)) nearest = index; });
    if (!times.length) return;
    cursor.setAttribute("x1", x(times[nearest]));
    cursor.setAttribute("x2", x(times[nearest]));
    cursor.setAttribute("visibility", "visible");
    readout.textContent = `${clock(times[nearest])}  ${lines.map(line => `${line.name}: ${format(line.points[nearest])}`).join(", ")}`;
  });
  picture.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); readout.textContent = summary; });
  return h("section", {class: "card"}, h("h2", null, title), h("p", {class: "card-note"}, note), picture, readout,
    lines.length > 1 ? h("ul", {class: "legend"}, lines.map((line, index) => h("li", {class: `c${index}`}, h("span", {class: "key"}), line.name))) : null);
}
