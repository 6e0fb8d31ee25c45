// A canvas to draw a digit on. It calls back with grey pixels from 0 (paper) to 1 (ink), row by row.

import {h} from "./dom.js";

const SIDE = 224, PEN = 20;

export function drawing(size, onChange) {
  const canvas = h("canvas", {class: "draw", width: SIDE, height: SIDE, role: "img", "aria-label": "Drawing area. The data field below takes numbers instead."});
  const pen = canvas.getContext("2d", {willReadFrequently: true});
  let last = null;
  function clear() {
    pen.fillStyle = "#000";
    pen.fillRect(0, 0, SIDE, SIDE);
  }
  function point(event) {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width * SIDE, (event.clientY - box.top) / box.height * SIDE];
  }
  function stroke(to) {
    pen.strokeStyle = "#fff";
    pen.lineWidth = PEN;
    pen.lineCap = pen.lineJoin = "round";
    pen.beginPath();
    pen.moveTo(...last);
    pen.lineTo(...to);
    pen.stroke();
    last = to;
  }
  canvas.addEventListener("pointerdown", event => {
    canvas.setPointerCapture(event.pointerId);
    last = point(event);
    stroke(last);
  });
  canvas.addEventListener("pointermove", event => { if (last) stroke(point(event)); });
  const end = () => { if (last) { last = null; onChange(pixels(canvas, pen, size)); } };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  clear();
  return h("div", {class: "draw-row"}, canvas, h("div", null, h("p", {class: "hint"}, `Draw with the mouse or a finger. The drawing is centred and scaled to ${size} × ${size}.`),
    h("button", {type: "button", class: "small", onclick: clear}, "Clear")));
}

function pixels(canvas, pen, size) {
  const source = pen.getImageData(0, 0, SIDE, SIDE).data;
  let left = SIDE, right = 0, top = SIDE, bottom = 0;
  for (let y = 0; y < SIDE; y++) {
    for (let x = 0; x < SIDE; x++) {
      if (source[(y * SIDE + x) * 4] > 40) { left = Math.min(left, x); right = Math.max(right, x); top = Math.min(top, y); bottom = Math.max(bottom, y); }
    }
  }
  if (right < left) return Array(size * size).fill(0);
  // MNIST's digits are 20 of 28 pixels high. The older digits of 8 x 8 pixels fill the height; with 32 x 32 pixels
  // they are enlarged, so the drawing is made as coarse as they are.
  const grain = size === 32 ? 8 : size, fit = size === 28 ? 20 : grain;
  const scale = fit / Math.max(bottom - top + 1, right - left + 1);
  const width = (right - left + 1) * scale, height = (bottom - top + 1) * scale;
  const coarse = scaled(grain, canvas, left, top, right - left + 1, bottom - top + 1, (grain - width) / 2, (grain - height) / 2, width, height);
  const data = scaled(size, coarse, 0, 0, grain, grain, 0, 0, size, size).getContext("2d").getImageData(0, 0, size, size).data;
  return Array.from({length: size * size}, (_, index) => data[index * 4] / 255);
}

function scaled(size, image, ...places) {
  const canvas = h("canvas", {width: size, height: size}), brush = canvas.getContext("2d");
  brush.fillStyle = "#000";
  brush.fillRect(0, 0, size, size);
  brush.imageSmoothingQuality = "high";
  brush.drawImage(image, ...places);
  return canvas;
}
